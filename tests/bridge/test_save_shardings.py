"""Shardings in TensorFlow's graphs and in files, and what runs on one device."""

from __future__ import annotations

import os
import subprocess
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
import savedmodel
from tests.bridge.pytrees import read_meta_graph
from tests.policy.source import ROOT
from tests.xla_call_module.sharding_strategies import device_indices, shard_shape
from tests.xla_flags import with_xla_flags
from xla_call_module.analyses.infer_signature import infer_signature
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.sharding_protos import sharding_from_proto

TESTS = ROOT / "tests"
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
PARAMS = {
    "b": np.arange(8, dtype=np.float32),
    "w": np.arange(128, dtype=np.float32).reshape(16, 8) / 64,
}
X = np.arange(128, dtype=np.float32).reshape(8, 16) / 32 - 1

# What jax2tf writes for this function, tests/foreign/write_jax2tf_sharded.py: `sharding` and
# `_XlaSharding`, then `_XlaShardingV2` of each XlaSharding node.
SPLIT_W = "08031a03010204220800020406010305073001", "08031a0301020430014a02040252020100"
SPLIT_X = "08031a03040102220800010203040506073001", "08031a0304010230014a0108520100"
SPLIT_Y = "08031a02040222080001020304050607", "08031a0204024a0108520100"
WHOLE = ("", "")
OF_FUNCTION = [WHOLE, SPLIT_W, SPLIT_X, WHOLE, SPLIT_Y]
OF_GRADIENT = [SPLIT_W, SPLIT_X, WHOLE, SPLIT_Y, WHOLE, SPLIT_W, SPLIT_X]


def _layer(params, x):
    return {"y": x @ params["w"] + params["b"], "n": jnp.sum(x)}


def _on(*spec):
    return NamedSharding(MESH, PartitionSpec(*spec))


def _export(**options):
    given = ({"b": _on(), "w": _on(None, "model")}, _on("data"))
    made = {"y": _on("data", "model"), "n": _on()}
    jitted = jax.jit(_layer, in_shardings=given, out_shardings=made)
    return export.export(jitted, **options)(PARAMS, X)


def _manual(x):
    return jax.shard_map(
        lambda x: lax.psum(x, "data"),
        mesh=MESH,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )(x)


@pytest.fixture(scope="module", params=[True, False], ids=["shardy", "gspmd"])
def partitioner(request):
    """Set whether JAX lowers for Shardy, for as long as the tests with it run."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param)
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)


@pytest.fixture(scope="module")
def exported(partitioner):
    return _export()


@pytest.fixture(scope="module")
def manual(partitioner):
    return export.export(jax.jit(_manual, in_shardings=_on("data")))(X)


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    """The folder of a file; a module that runs on one device is saved without a warning."""
    folder = tmp_path_factory.mktemp("sharded") / "m"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bridge.save(exported, folder, params=PARAMS)
    return folder


@pytest.fixture(scope="module")
def saved_again(saved, tmp_path_factory):
    """The folder after TensorFlow has loaded and saved it."""
    folder = tmp_path_factory.mktemp("again") / "m"
    loaded = tf.saved_model.load(saved)
    tf.saved_model.save(loaded, folder, signatures=loaded.signatures)
    return folder


@pytest.fixture(scope="module")
def foreign_file(partitioner, tmp_path_factory, preloaded_python):
    """The folder that jax2tf has written, in a process with eight devices."""
    folder = tmp_path_factory.mktemp("foreign")
    script = TESTS / "foreign" / "write_jax2tf_sharded.py"
    name = "shardy" if partitioner else "gspmd"
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": with_xla_flags(flags), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [preloaded_python, script, folder, name]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return folder


def test_a_file_of_jax2tf(foreign_file, partitioner):
    """Its messages are those that are expected here, and it is read with its shardings."""
    function, gradient = _functions(foreign_file / "model")
    for nodes, wanted in ((function, OF_FUNCTION), (gradient, OF_GRADIENT)):
        assert _shown(nodes, shardy=partitioner) == _expected(wanted, shardy=partitioner)
    model = bridge.load(foreign_file / "model")
    with np.load(foreign_file / "values.npz") as values:
        found = model(x=X)
        np.testing.assert_allclose(found["y"], values["y"], rtol=1e-5)
        exported = model.signatures["serving_default"].exported
        of = jax.grad(lambda params: exported.call(params, X)["y"].sum())(model.params)
        np.testing.assert_allclose(of["w"], values["w"], rtol=1e-5)


def test_shardings_of_a_file_of_jax2tf(foreign_file, partitioner):
    (signature,) = savedmodel.read(foreign_file / "model").signatures
    call = infer_signature(signature.function.call)
    assert call.nr_devices == 8
    of_b, of_w, of_x = (spec.sharding for spec in call.args)
    assert of_b.is_fully_replicated
    assert device_indices(of_w, (16, 8))[3] == (slice(None), slice(4, 8))
    assert shard_shape(of_x, X.shape) == (2, 16)
    assert (of_w.placement is not None) == partitioner


def _shown(nodes, *, shardy):
    """The messages of XlaSharding nodes, which all have what they pass on."""
    found = []
    for node in (node for node in nodes if node.op == "XlaSharding"):
        (first, second), long = (
            (node.attr[key].s.hex() for key in ("sharding", "_XlaSharding")),
            node.attr["_XlaShardingV2"].s.hex() if "_XlaShardingV2" in node.attr else None,
        )
        assert first == second
        assert (long is not None) == shardy
        assert node.attr["T"].type == tf.float32.as_datatype_enum
        found.append((first, long))
    return found


def _expected(messages, *, shardy):
    return [(first, long if shardy else None) for first, long in messages]


def _functions(folder):
    """The bodies with a call of a module: the function and its gradient."""
    library = read_meta_graph(folder).graph_def.library
    calling = (
        function.node_def
        for function in library.function
        if any(node.op == "XlaCallModule" for node in function.node_def)
    )
    return sorted(calling, key=len)


@pytest.mark.parametrize("origin", ["saved", "saved_again"])
def test_files_have_the_messages_of_jax2tf(origin, partitioner, request):
    function, gradient = _functions(request.getfixturevalue(origin))
    assert _shown(function, shardy=partitioner) == _expected(OF_FUNCTION, shardy=partitioner)
    assert _shown(gradient, shardy=partitioner) == _expected(OF_GRADIENT, shardy=partitioner)


def test_what_is_read_of_a_variable_has_its_sharding(saved):
    function, _ = _functions(saved)
    nodes = {node.name: node for node in function}
    first, second, *_ = (node for node in function if node.op == "XlaSharding")
    for shown in (first, second):
        assert nodes[shown.input[0].split(":")[0]].op == "ReadVariableOp"
    (call,) = (node for node in function if node.op == "XlaCallModule")
    of_call = [nodes[name.split(":")[0]].op for name in call.input if ":" in name]
    assert of_call == ["XlaSharding"] * 3


def test_graphs_have_them_too(exported, partitioner):
    converted = bridge.convert(exported)
    variables = {key: tf.Variable(value) for key, value in PARAMS.items()}

    @tf.function(autograph=False)
    def function(x):
        with tf.GradientTape() as tape:
            result = converted(variables, x)["y"]
        return tape.gradient(result, variables)

    concrete = function.get_concrete_function(tf.TensorSpec(X.shape))
    graph = concrete.graph.as_graph_def()
    bodies = [graph.node, *(inner.node_def for inner in graph.library.function)]
    found = [_shown(nodes, shardy=partitioner) for nodes in bodies]
    # Where it is not differentiated, too.
    for wanted in (OF_FUNCTION, OF_GRADIENT):
        assert _expected(wanted, shardy=partitioner) in found
    np.testing.assert_allclose(concrete(tf.constant(X))["w"], X.sum(0)[:, None] @ np.ones((1, 8)))


@pytest.mark.parametrize("origin", ["saved", "saved_again"])
@pytest.mark.usefixtures("partitioner")
def test_tensorflow_on_one_device_has_the_same_numbers(origin, request):
    folder = request.getfixturevalue(origin)
    wanted = _layer(PARAMS, X)
    loaded = tf.saved_model.load(folder)
    found = loaded.signatures["serving_default"](x=tf.constant(X))
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = meta_graph.signature_def["serving_default"]
        feeds = {signature.inputs["x"].name: X}
        again = session.run(signature.outputs["y"].name, feeds)
    np.testing.assert_allclose(again, wanted["y"], rtol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_on_one_device(saved, jit_compile):
    loaded = tf.saved_model.load(saved)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = tf.reduce_sum(loaded.signatures["serving_default"](x=x)["y"])
        return tape.gradient(result, [x, loaded.params["w"]])

    of_x, of_w = gradients(tf.constant(X))
    wanted = jax.grad(lambda x, w: _layer({**PARAMS, "w": w}, x)["y"].sum(), (0, 1))(X, PARAMS["w"])
    np.testing.assert_allclose(of_x, wanted[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_w, wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("origin", ["saved", "saved_again"])
def test_they_are_read_back(origin, partitioner, request):
    (signature,) = savedmodel.read(request.getfixturevalue(origin)).signatures
    call, vjp = signature.function.chain
    assert (call.nr_devices, call.uses_shardy) == (8, partitioner)
    on_mesh = "on the mesh data 4 x model 2"
    assert [str(spec.sharding) for spec in call.args] == [
        f"() {on_mesh}", f"(whole, model) {on_mesh}", f"(data) {on_mesh}"
    ]  # fmt: skip
    assert [str(spec.sharding) for spec in call.results] == [
        f"() {on_mesh}", f"(data, model) {on_mesh}"
    ]  # fmt: skip
    assert vjp.results[1].sharding == call.args[1].sharding
    exported = bridge.load(request.getfixturevalue(origin)).signatures["serving_default"].exported
    (of_b, of_w, of_x) = exported.in_shardings_jax(MESH)
    assert (of_b.spec, of_w.spec, of_x.spec) == (
        PartitionSpec(), PartitionSpec(None, "model"), PartitionSpec("data")
    )  # fmt: skip


def test_gradients_for_gspmd_on_a_mesh_without_devices(tmp_path):
    split = _on("data")
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        exported = export.export(jax.jit(jnp.cos, in_shardings=split, out_shardings=split))(X)
        bridge.save(exported, tmp_path / "m")
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    (signature,) = savedmodel.read(tmp_path / "m").signatures
    assert len(signature.function.chain) == 2


@pytest.mark.usefixtures("partitioner")
def test_the_gradient_is_found_behind_the_sharding_of_the_first_result(tmp_path):
    split = _on("data")
    exported = export.export(jax.jit(jnp.sin, in_shardings=split, out_shardings=split))(X)
    bridge.save(exported, tmp_path / "m", gradient_order=2)
    (signature,) = savedmodel.read(tmp_path / "m").signatures
    assert len(signature.function.chain) == 3


def test_eager_runs_on_one_device(exported):
    found = bridge.convert(exported)(PARAMS, tf.constant(X))
    np.testing.assert_allclose(found["y"], _layer(PARAMS, X)["y"], rtol=1e-5)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    rows = _on("data")
    folder = tmp_path_factory.mktemp("split") / "m"
    double = jax.jit(lambda x: 2 * x, in_shardings=rows, out_shardings=rows)
    bridge.save(export.export(double)(X), folder, gradient_order=1)
    return bridge.load(folder)


REFUSAL = (
    r"_manual was exported for 8 devices, and jax\.shard_map at .*test_save_shardings\.py:\d+ "
    r"runs on each of them separately.*bridge\.load\(path, mesh=\.\.\.\) over 8 devices"
)


UNDER = {
    "nothing": lambda model: model(X),
    "jit": lambda model: jax.jit(lambda x: model(x))(X),
    "grad": lambda model: jax.grad(lambda x: model(x).sum())(X),
    "jit of grad": lambda model: jax.jit(jax.grad(lambda x: model(x).sum()))(X),
    "vmap": lambda model: jax.vmap(model)(X[None]),
    "scan": lambda model: lax.scan(lambda x, _: (model(x), None), X, length=2),
    "lower": lambda model: jax.jit(lambda x: model(x)).lower(X),
    "export": lambda model: export.export(jax.jit(lambda x: model(x)))(X),
}


@pytest.mark.parametrize("way", UNDER)
def test_what_was_loaded_without_a_mesh_is_refused_by_name(way, split):
    with pytest.raises(
        ShardingError,
        match=r"serving_default was exported for 8 devices, on a mesh with the axes "
        r"\{'data': 4, 'model': 2\}, and was loaded for one\. To do: load it with mesh=",
    ):
        UNDER[way](split)


def test_what_was_loaded_without_a_mesh_can_be_traced(split):
    """For how many devices is known when it is lowered."""
    assert jax.eval_shape(split, X).shape == X.shape


def test_what_needs_all_devices_is_refused_by_name(manual):
    with pytest.raises(ShardingError, match=REFUSAL):
        bridge.convert(manual)(tf.constant(X))


def test_a_graph_of_it_comes_with_a_warning(manual):
    function = tf.function(bridge.convert(manual), autograph=False)
    with pytest.warns(UserWarning, match=f"A graph that cannot run here: {REFUSAL}"):
        function.get_concrete_function(tf.TensorSpec(X.shape))


def test_a_file_of_it_comes_with_a_warning(manual, tmp_path):
    match = f"A file that TensorFlow cannot run on one device: {REFUSAL}"
    with pytest.warns(UserWarning, match=match):
        bridge.save(manual, tmp_path / "m")
    assert bridge.load(tmp_path / "m").signatures["serving_default"].exported.nr_devices == 8


def test_a_collective_outside_of_shard_map_is_refused_too(partitioner):
    """On one device XLA would take its own value for the sum."""
    mesh = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec()
    summed = jax.shard_map(
        lambda x: lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    split = NamedSharding(mesh, spec)
    exported = export.export(jax.jit(summed, in_shardings=split))(np.ones(4, np.float32))
    with pytest.raises(ShardingError, match=r"jax\.shard_map at"):
        bridge.convert(exported)(tf.ones(4))


def test_on_one_device_nothing_is_shown():
    mesh = AbstractMesh((1,), ("d",))
    split = NamedSharding(mesh, PartitionSpec("d"))
    exported = export.export(jax.jit(jnp.sin, in_shardings=split))(X)
    concrete = tf.function(bridge.convert(exported), autograph=False).get_concrete_function(
        tf.TensorSpec(X.shape)
    )
    assert "XlaSharding" not in {node.op for node in concrete.graph.as_graph_def().node}


def test_the_messages_say_what_the_exported_says(saved):
    function, _ = _functions(saved)
    found = [
        device_indices(sharding_from_proto(node.attr["sharding"].s), (8, 16))[5]
        for node in function
        if node.op == "XlaSharding" and node.input[0] == "x"
    ]
    assert found == [(slice(4, 6), slice(None))]
