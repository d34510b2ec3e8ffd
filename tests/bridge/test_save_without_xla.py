"""Files of plain operations where XLA is disabled, as a server without its flags disables it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import bridge
import savedmodel
from savedmodel.read import read_proto
from tests.bridge.c_programs import build, encode_request, encode_text, run_in_c
from xla_call_module.errors import ShardingError, StructureError

RANDOM = np.random.default_rng(0)
INPUTS = {f"rows_{n}": RANDOM.normal(size=(n, 8)).astype(np.float32) for n in (1, 3, 17)}
PARAMS = {
    "w": RANDOM.normal(size=(8, 8)).astype(np.float32),
    "b": RANDOM.normal(size=8).astype(np.float32),
}


def mlp(params, x):
    return jax.nn.softmax(jnp.tanh(x @ params["w"] + params["b"]) @ params["w"])


def attention(params, x):
    q, k, v = (jnp.tanh(x @ params["w"] * scale) for scale in (1, 0.5, 2))
    return jax.nn.softmax(q @ k.T / 8**0.5) @ v


def looped(params, x):
    return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ params["w"]), x)


def branched(params, x):
    return lax.cond(x.sum() > 0, jnp.sin, lambda y: y * params["b"], x)


@jax.custom_jvp
def doubled(x):
    return x * 2


@doubled.defjvp
def _doubled_jvp(primals, tangents):
    return doubled(*primals), tangents[0] * 5  # which is not what TensorFlow would make of it


FUNCTIONS = {
    "mlp": mlp,
    "attention": attention,
    "branched": branched,
    "looped": looped,
    "own_gradient": lambda params, x: doubled(x) * params["b"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without_xla") / "files"
    for name, function in FUNCTIONS.items():
        bridge.save(
            function, folder / name, params=PARAMS, args="f32[b,8]", operations="tensorflow"
        )
    bridge.save(mlp, folder / "xla", params=PARAMS, args="f32[b,8]")
    np.savez(folder / "inputs.npz", **INPUTS)
    return folder


@pytest.fixture(scope="module")
def found(files):
    command = [sys.executable, "-m", "tests.bridge.without_xla", str(files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = map(json.loads, done.stdout.splitlines())
    return {(line["file"], line["input"]): line for line in lines}


def test_a_module_is_refused_there(found):
    assert "XLA compilation disabled" in found["xla", "rows_3"]["error"]


@pytest.mark.parametrize("size", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_way_to_call_it_is_right(found, name, size):
    line, x = found[name, size], INPUTS[size]
    assert "error" not in line
    wanted = FUNCTIONS[name](PARAMS, x)
    gradient = jax.grad(lambda x: (FUNCTIONS[name](PARAMS, x) ** 2).sum())(x)
    for results in (line, line["again"]):
        for way in ("eager", "signature", "session"):
            np.testing.assert_allclose(results[way], wanted, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(results["gradient"], gradient, rtol=1e-3, atol=1e-5)


def test_the_c_api_runs_them(files, tmp_path):
    """As TensorFlow Serving loads a file; one program runs all of them at each size."""
    runs, names, wanted = [], [], []
    for name, (size, x) in itertools.product(FUNCTIONS, INPUTS.items()):
        definition = read_proto(files / name).meta_graphs[0].signature_def["serving_default"]
        runs.append(encode_text(str(files / name)) + encode_request(definition, {"x": x}))
        names.append(sorted(definition.outputs))
        wanted.append((f"{name}, {size}", FUNCTIONS[name](PARAMS, x)))
    program = build("load_and_run", tmp_path)
    for (error, results), (where, expected) in zip(
        run_in_c(program, tmp_path, runs, names), wanted, strict=True
    ):
        assert error == "", where
        (found,) = results.values()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_module_is_in_the_file_nor_in_what_tensorflow_saves_of_it(files, found, name):
    assert "again" in found[name, "rows_3"]
    for path in (files / name, files.with_name("again") / name):
        assert "XlaCallModule" not in {
            node.op
            for graph in read_proto(path).meta_graphs
            for function in graph.graph_def.library.function
            for node in function.node_def
        }
        assert len(savedmodel.read(path).default.function.operations) == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jax_reads_the_same_of_it(files, found, name, tmp_path):
    assert "again" in found[name, "rows_3"]
    bridge.retarget(files / name, to=tmp_path / "xla", operations="xla")
    wanted = savedmodel.read(tmp_path / "xla").default.function.chain
    for path in (files / name, files.with_name("again") / name):
        assert savedmodel.read(path).default.function.chain == wanted
    x = INPUTS["rows_3"]
    np.testing.assert_allclose(
        bridge.load(files / name)(x), FUNCTIONS[name](PARAMS, x), rtol=1e-5, atol=1e-6
    )


def test_loops_that_fill_lists_are_read_again(tmp_path):
    def rows(x):
        return lax.scan(lambda total, row: (total + row, jnp.sin(total)), jnp.zeros(3), x)[1]

    bridge.save(rows, tmp_path / "model", args="f32[4,3]", operations="tensorflow")
    graphs = savedmodel.read(tmp_path / "model").default.function.operations
    assert any(node.op.startswith("TensorList") for node in graphs[1].main.nodes)
    x = RANDOM.normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(bridge.load(tmp_path / "model")(x), rows(x), rtol=1e-6)
    np.testing.assert_allclose(tf.saved_model.load(tmp_path / "model")(x), rows(x), rtol=1e-5)


def test_it_is_verified_with_its_gradients(files):
    report = bridge.verify(files / "mlp")
    assert report.passed
    assert {row.order for row in report.rows} == {0, 1}
    assert bridge.inspect(files / "mlp").signatures[0].graph_operations["MatMul"] >= 2


def test_what_it_is_no_use_for_is_refused(tmp_path):
    with pytest.raises(StructureError, match="leave out batch_buckets, or pass operations"):
        bridge.save(jnp.sin, tmp_path / "model", args="f32[b]", operations="tensorflow",
                    batch_buckets=(1, 8))  # fmt: skip
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    spec = jax.ShapeDtypeStruct((4,), "float32", sharding=sharding)
    exported = jax.export.export(jax.jit(jnp.sin, in_shardings=sharding))(spec)
    with pytest.raises(ShardingError, match="is for 2 devices, and TensorFlow's operations"):
        bridge.save(exported, tmp_path / "model", operations="tensorflow")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Files of a function of two arguments with the same number of rows."""
    folder = tmp_path_factory.mktemp("checked")
    options = {"args": "f32[b], f32[b]", "gradient_order": 0}
    bridge.save(lambda x, y: x + y, folder / "xla", **options)
    plain = {**options, "operations": "tensorflow"}
    bridge.save(lambda x, y: x + y, folder / "plain", **plain)
    bridge.save(lambda x, y: x + y, folder / "off", **plain, disabled_checks=["shape_assertions"])
    bridge.retarget(folder / "xla", to=folder / "retargeted", operations="tensorflow")
    return folder


def _sum(path, *, signature):
    x, y = tf.ones(1), tf.ones(3)
    loaded = tf.saved_model.load(path)
    return loaded.signatures["serving_default"](x=x, y=y) if signature else loaded(x, y)


@pytest.mark.parametrize("signature", [False, True])
@pytest.mark.parametrize("name", ["plain", "retargeted"])
def test_sizes_that_tensorflow_would_repeat_are_refused(checked, name, signature):
    said = r"takes x: float32\[b\], y: float32\[b\]; of these .* arrived that follow.\] \[1\] \[3\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        _sum(checked / name, signature=signature)


def test_a_disabled_check_leaves_no_assertion(checked):
    np.testing.assert_array_equal(_sum(checked / "off", signature=False), [2, 2, 2])
    graph = read_proto(checked / "off").meta_graphs[0].graph_def
    operations = {node.op for f in graph.library.function for node in f.node_def}
    assert operations.isdisjoint({"Assert", "If"})


def test_sizes_are_compared_in_live_functions():
    call = bridge.convert(lambda x, y: x + y, polymorphic_shapes="b", operations="tensorflow")
    signature = [tf.TensorSpec([None]), tf.TensorSpec([None])]
    compiled = tf.function(call, input_signature=signature)
    np.testing.assert_array_equal(compiled(tf.ones(3), tf.ones(3)), [2, 2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes x: float32"):
        compiled(tf.ones(1), tf.ones(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"args\[1\] of <lambda> has"):
        call(tf.ones(1), tf.ones(3))


@pytest.mark.parametrize("operations", ["xla", "tensorflow"])
def test_an_empty_batch_is_refused_by_files_of_both_kinds(tmp_path, operations):
    def convolve(x):
        kernel = np.ones((3, 3, 2, 7), np.float32)
        names = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=names)

    bridge.save(convolve, tmp_path / "m", args=("f32[b,5,5,2]",), operations=operations)
    signature = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    for size in (1, 3):
        (result,) = signature(x=tf.ones((size, 5, 5, 2))).values()
        assert result.shape == (size, 3, 3, 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"b >= 1|>= 1 for dimension"):
        signature(x=tf.ones((0, 5, 5, 2)))
    with pytest.raises(StructureError, match=r"b would be 0.*at least 1"):
        bridge.load(tmp_path / "m")(np.ones((0, 5, 5, 2), np.float32))
