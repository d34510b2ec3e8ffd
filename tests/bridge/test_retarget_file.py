"""`bridge.retarget` of a file: older modules everywhere, and the same numbers."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
import savedmodel
from bridge.cli.main import main
from savedmodel.protos.schema import SavedModel
from savedmodel.read import read_proto
from xla_call_module.descriptions.description_json import read_description
from xla_call_module.errors import PlatformError, StructureError, VersionError
from xla_call_module.node import OP, decode_node
from xla_call_module.versions import RELEASES, parse_release

FOREIGN = ("jax2tf", "keras", "bare_graph", "session_graph", "orbax")
PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)


def _calls(folder):
    proto = SavedModel()
    proto.ParseFromString((folder / "saved_model.pb").read_bytes())
    graphs = [meta_graph.graph_def for meta_graph in proto.meta_graphs]
    bodies = [g.node for g in graphs] + [f.node_def for g in graphs for f in g.library.function]
    return [decode_node(node) for body in bodies for node in body if node.op == OP]


def _run(folder, values):
    """For each signature the greatest error of its outputs, as a part of the largest."""
    loaded = tf.saved_model.load(folder)
    errors = {}
    for key, kinds in values.items():
        signature = loaded.signatures[key]
        # A file of TensorFlow 1 has functions without names for their arguments.
        names = signature.structured_input_signature[1] or {}
        inputs = {name: tf.constant(value) for name, value in kinds["input"].items()}
        found = signature(**inputs) if names else signature(*inputs.values())
        pairs = [(found[name].numpy(), value) for name, value in kinds["output"].items()]
        errors[key] = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    return errors


def _predict(params, x):
    """JAX 0.12 makes the derivative of `erf` of operations that have no older form."""
    return {"y": lax.erf(lax.stop_gradient(x)) * x**3 @ params["w"]}


@pytest.fixture(scope="module")
def exported():
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), np.float32)
    return export.export(jax.jit(_predict), platforms=["cpu", "cuda", "tpu"])(PARAMS, spec)


@pytest.fixture(scope="module")
def ours(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours") / "model"
    bridge.save(exported, folder, params=PARAMS, gradient_order=2, tensorflow="2.21")
    return folder


@pytest.mark.parametrize("tensorflow", ["2.16", "2.18"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_modules_are_older(foreign, name, tensorflow, tmp_path):
    release = parse_release(tensorflow)
    newer = _calls(foreign(name).folder)
    bridge.retarget(foreign(name).folder, tensorflow, to=tmp_path / "new")
    older = _calls(tmp_path / "new")
    assert len(older) == len(newer)
    assert not any(call.version > release.convention or call.uses_shardy for call in older)
    assert not any(call.stablehlo_version > release.stablehlo for call in older)
    assert any(call.stablehlo_version > release.stablehlo for call in newer)
    assert [call.operands for call in older] == [call.operands for call in newer]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_run(foreign, name, tmp_path):
    bridge.retarget(foreign(name).folder, "2.16", to=tmp_path / "new")
    assert max(_run(tmp_path / "new", foreign(name).values).values()) < 1e-6


@pytest.mark.parametrize("name", ["jax2tf", "orbax", "session_graph"])
def test_what_this_tensorflow_refuses_runs_afterwards(foreign, name, tmp_path):
    folder, values = foreign(name).folder, foreign(name).values
    if max(call.stablehlo_version for call in _calls(folder)) <= RELEASES[-1].stablehlo:
        pytest.skip("this JAX writes what this TensorFlow reads")
    with pytest.raises(tf.errors.OpError, match="failed to deserialize portable artifact"):
        _run(folder, values)
    bridge.retarget(folder, "2.21", to=tmp_path / "new")
    assert max(_run(tmp_path / "new", values).values()) < 1e-6


def _gradients(folder, values):
    loaded = tf.saved_model.load(folder)
    image = tf.constant(values["input"]["image"])
    with tf.GradientTape() as tape:
        tape.watch(image)
        result = loaded.signatures["serving_default"](image=image)["scores"]
    variables = {variable.shape: variable for variable in loaded.signatures["norm"].variables}
    assert variables
    trained = [loaded.params["layers"][i][name] for i in (0, 1) for name in ("w", "b")]
    cotangent = tf.constant(values["cotangent"]["scores"])
    return [g.numpy() for g in tape.gradient(result, [image, *trained], cotangent)]


def test_foreign_gradients(foreign, tmp_path):
    folder, values = foreign("jax2tf").folder, foreign("jax2tf").values
    bridge.retarget(folder, "2.16", to=tmp_path / "new")
    module = tf.saved_model.load(tmp_path / "new")
    tf.saved_model.save(module, tmp_path / "again", signatures=dict(module.signatures))
    expected = [values["serving_default"]["gradient"]["image"]]
    parameters = values["serving_default"]["parameter"]
    expected += [parameters[f"layers/{i}/{name}"] for i in (0, 1) for name in ("w", "b")]
    for place in ("new", "again"):
        found = _gradients(tmp_path / place, values["serving_default"])
        for gradient, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_that_are_not_in_the_file(foreign, tmp_path):
    """They have the names of any others in the process that loads the file."""
    folder = shutil.copytree(foreign("jax2tf").folder, tmp_path / "old")
    assert _absent_gradients(folder)
    proto = read_proto(folder)
    own = proto.meta_graphs[0].graph_def.library.function[0].node_def[0]
    own.attr["_gradient_op_type"].s = b"RegisteredByAProgram"
    (folder / "saved_model.pb").write_bytes(proto.SerializeToString())
    bridge.retarget(folder, "2.16", to=tmp_path / "new")
    absent = {b"CustomGradient-not-in-this-file", b"RegisteredByAProgram"}
    assert _absent_gradients(tmp_path / "new") == absent


def _absent_gradients(folder):
    (meta_graph,) = read_proto(Path(folder)).meta_graphs
    library = meta_graph.graph_def.library
    nodes = [node for function in library.function for node in function.node_def]
    named = {node.attr["_gradient_op_type"].s for node in nodes if "_gradient_op_type" in node.attr}
    return named - {g.registered_op_type.encode() for g in library.registered_gradients}


@pytest.mark.parametrize("tensorflow", ["2.14", "2.18"])
def test_a_file_of_ours(ours, tensorflow, tmp_path):
    bridge.retarget(ours, tensorflow, to=tmp_path / "new")
    old, new = savedmodel.read(ours).default, savedmodel.read(tmp_path / "new").default
    assert (new.inputs, new.outputs) == (old.inputs, old.outputs)
    assert len(new.function.chain) == 3
    for before, after in zip(old.function.chain, new.function.chain, strict=True):
        assert (after.args, after.results, after.exported) == (
            before.args,
            before.results,
            before.exported,
        )
        assert after.stablehlo_version <= parse_release(tensorflow).stablehlo
    assert bridge.inspect(tmp_path / "new").metadata["tensorflow"] == tensorflow
    # Older versions of JAX write an `erf` that has another form in TensorFlow 2.14.
    np.testing.assert_allclose(_second_order(tmp_path / "new"), _second_order(ours), rtol=1e-6)


def _second_order(folder):
    loaded = tf.saved_model.load(folder)
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = tf.reduce_sum(loaded(x)["y"])
        gradient = inner.gradient(result, x)
    return outer.gradient(gradient, x).numpy()


@pytest.mark.parametrize("platforms", [["cpu"], ["tpu", "cpu"], ["cpu", "cuda"]])
def test_platforms(ours, platforms, tmp_path):
    bridge.retarget(ours, to=tmp_path / "new", platforms=platforms)
    (report,) = bridge.inspect(tmp_path / "new").signatures
    assert report.platforms == tuple(platforms)
    for call in savedmodel.read(tmp_path / "new").default.function.chain:
        assert call.platforms == tuple(platforms)
        description = read_description(call.exported, where=call.name)
        assert description.platforms == tuple(platforms)
    np.testing.assert_array_equal(_second_order(tmp_path / "new"), _second_order(ours))


def test_a_branch_follows_its_platform(tmp_path):
    def function(x):
        by_platform = {"cpu": lambda x: x + 1, "cuda": lambda x: x + 2, "tpu": lambda x: x + 3}
        return lax.platform_dependent(x, **by_platform)

    exported = export.export(jax.jit(function), platforms=["cuda", "tpu", "cpu"])(X)
    bridge.save(exported, tmp_path / "model", disabled_checks=["platform"], gradient_order=0)
    for platforms, added in ((["tpu", "cpu"], 1), (["cpu"], 1), (["tpu"], 3), (["tpu", "cuda"], 3)):
        folder = tmp_path / "_".join(platforms)
        bridge.retarget(tmp_path / "model", to=folder, platforms=platforms)
        found = tf.saved_model.load(folder)(tf.constant(X)).numpy()
        np.testing.assert_array_equal(found, X + added)


def test_a_platform_that_it_was_not_lowered_for(ours, tmp_path):
    match = r"node \S+ of function \S+: .* was lowered for cpu, cuda, tpu, and not for rocm"
    with pytest.raises(PlatformError, match=match):
        bridge.retarget(ours, to=tmp_path / "new", platforms=["cpu", "gpu"])
    assert not (tmp_path / "new").exists()


def test_checks_are_set(ours, tmp_path):
    checks = ["platform", "shape_assertions"]
    bridge.retarget(ours, to=tmp_path / "new", disabled_checks=checks)
    assert bridge.inspect(tmp_path / "new").signatures[0].disabled_checks == tuple(checks)
    bridge.retarget(tmp_path / "new", to=tmp_path / "strict", disabled_checks=[])
    assert bridge.inspect(tmp_path / "strict").signatures[0].disabled_checks == ()
    with pytest.raises(StructureError, match="'platfrom' is unknown"):
        bridge.retarget(ours, to=tmp_path / "other", disabled_checks=["platfrom"])


@pytest.fixture(scope="module")
def factorization(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linalg") / "model"
    exported = export.export(jax.jit(jnp.linalg.cholesky))(np.eye(3, dtype=np.float32))
    bridge.save(exported, folder, linalg="lapack", gradient_order=0, tensorflow="2.21")
    return folder


def test_linear_algebra_is_replaced(factorization, tmp_path):
    matrix = np.array([[4, 2, 0], [2, 5, 1], [0, 1, 3]], np.float32)
    with pytest.raises(tf.errors.OpError, match="lapack_spotrf_ffi"):
        tf.saved_model.load(factorization)(matrix)
    report = bridge.retarget(factorization, "2.18", to=tmp_path / "new")
    assert (report.nodes, report.modules, report.tensorflow) == (1, 1, "2.18")
    found = tf.saved_model.load(tmp_path / "new")(matrix).numpy()
    np.testing.assert_allclose(found, np.linalg.cholesky(matrix), rtol=1e-6)
    bridge.retarget(factorization, "2.18", to=tmp_path / "same", linalg="lapack")
    assert bridge.inspect(tmp_path / "same").signatures[0].custom_calls == ("lapack_spotrf_ffi",)


def test_what_has_no_older_form(tmp_path):
    def function(x):
        return lax.dot(x, x, precision=lax.DotAlgorithmPreset.F32_F32_F32)

    exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct((2, 2), np.float32))
    bridge.save(exported, tmp_path / "model", gradient_order=0)
    match = r"node .* cannot be expressed for TensorFlow 2\.18 .* The oldest .* is 2\.19"
    with pytest.raises(VersionError, match=match):
        bridge.retarget(tmp_path / "model", "2.18", to=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_options_for_files_are_none_for_an_exported(exported, ours):
    with pytest.raises(
        StructureError, match="is an Exported, which needs tensorflow= or platforms="
    ):
        bridge.retarget(exported, "2.16", disabled_checks=["platform"])
    with pytest.raises(StructureError, match=r"is missing\. To do: pass to="):
        bridge.retarget(ours, "2.16")


def test_the_command(ours, tmp_path, capsys):
    arguments = ["retarget", str(ours), str(tmp_path / "new"), "--tensorflow", "2.16"]
    options = ["--platforms", "cpu,tpu", "--disabled-checks", "platform"]
    assert main([*arguments, *options]) == 0
    assert "3 modules, readable from TensorFlow 2.16 on" in capsys.readouterr().out
    call = savedmodel.read(tmp_path / "new").default.function.call
    assert call.platforms == ("cpu", "tpu")
    assert [str(check) for check in call.disabled_checks] == ["platform"]
    assert main([*arguments, *options]) == 2
    assert "new exists" in capsys.readouterr().err
    assert main([*arguments, *options, "--overwrite"]) == 0


def test_the_command_runs_without_tensorflow(foreign, tmp_path):
    code = (
        "import sys, bridge.cli.main as cli; status = cli.main(sys.argv[1:]); "
        "assert 'tensorflow' not in sys.modules; sys.exit(status)"
    )
    arguments = ["retarget", foreign("keras").folder, tmp_path / "new", "--tensorflow", "2.14"]
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    subprocess.run(command, check=True)
    assert {call.version for call in _calls(tmp_path / "new")} == {8}


def _stablehlo(folder):
    orders = [
        order for signature in bridge.inspect(folder).signatures for order in signature.orders
    ]
    return {order.stablehlo for order in orders}


def test_a_file_is_lifted(exported, tmp_path):
    """It is written for as old a release as it allows, and StableHLO is read for five years."""
    bridge.save(exported, tmp_path / "old", params=PARAMS, gradient_order=2, tensorflow="2.14")
    written = bridge.retarget(tmp_path / "old", to=tmp_path / "new", lift=True)
    assert written.tensorflow == "2.20"
    found = parse_release("2.21").stablehlo
    assert _stablehlo(tmp_path / "old") == {"0.14.8"}
    assert _stablehlo(tmp_path / "new") <= {".".join(map(str, found)), "1.13.0"}
    ends = [bridge.inspect(tmp_path / name).readable_until for name in ("old", "new")]
    assert ends == ["2028-06-16", "2030-08-18"]
    np.testing.assert_array_equal(_second_order(tmp_path / "new"), _second_order(tmp_path / "old"))


def test_lifted_for_a_release(exported, tmp_path, capsys):
    bridge.save(exported, tmp_path / "old", params=PARAMS, tensorflow="2.14")
    command = ["retarget", str(tmp_path / "old"), str(tmp_path / "new"), "--lift"]
    assert main([*command, "--tensorflow", "2.18"]) == 0
    assert "readable from TensorFlow 2.18 on" in capsys.readouterr().out
    assert _stablehlo(tmp_path / "new") == {"1.7.3"}
    call = savedmodel.read(tmp_path / "new").default.function.call
    assert "StableHLO 0.14.8 to 1.7.3" in call.changes


def test_an_exported_is_not_lifted(exported):
    with pytest.raises(StructureError, match="or with a newer JAX"):
        bridge.retarget(exported, "2.18", lift=True)


def _newer(folder, to, changes):
    """A file as a newer release of this package may write it."""
    file = savedmodel.read(folder)
    function = file.default.function
    chain = tuple(
        dataclasses.replace(
            call, exported=json.dumps(json.loads(call.exported) | changes, sort_keys=True).encode()
        )
        for call in function.chain
    )
    function = dataclasses.replace(function, chain=chain)
    signature = dataclasses.replace(file.default, function=function)
    savedmodel.write(dataclasses.replace(file, signatures=(signature,)), to)
    return to


def _carried(folder):
    return [json.loads(call.exported) for call in savedmodel.read(folder).default.function.chain]


def test_fields_of_a_newer_release_are_kept(ours, tmp_path):
    changes = {"version": [1, 9], "layouts": {"x": [1, None]}}
    newer = _newer(ours, tmp_path / "newer", changes)
    bridge.retarget(newer, "2.16", to=tmp_path / "older", platforms=["cpu"])
    loaded = bridge.load(newer).default
    bridge.save(loaded.exported, tmp_path / "again", params=loaded.params, gradient_order=2)
    for folder in (newer, tmp_path / "older", tmp_path / "again"):
        orders = _carried(folder)
        assert len(orders) == 3
        assert all(changes.items() <= order.items() for order in orders), folder


def test_a_newer_major_version_is_refused(ours, tmp_path):
    changes = {"version": [2, 0], "read_by": "jax-tf-bridge 9.1"}
    newer = _newer(ours, tmp_path / "newer", changes)
    with pytest.raises(
        VersionError, match=r"version 2\.0 .*To do: read it with jax-tf-bridge 9\.1"
    ):
        bridge.load(newer).default.exported  # noqa: B018 - it is made when asked for


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A file of modules, and the same of plain operations."""
    folder = tmp_path_factory.mktemp("both")
    for operations in ("xla", "tensorflow"):
        bridge.save(_smooth, folder / operations, params=PARAMS, args="f32[b,3]", gradient_order=2,
                    operations=operations)  # fmt: skip
    return folder


def _smooth(params, x):
    return jnp.tanh(x @ params["w"])


def _operations(folder):
    graph = read_proto(folder).meta_graphs[0].graph_def
    return {node.op for function in graph.library.function for node in function.node_def}


@pytest.mark.parametrize(("start", "to"), [("xla", "tensorflow"), ("tensorflow", "xla")])
def test_operations_take_the_place_of_modules_and_back(both, start, to, tmp_path):
    report = bridge.retarget(both / start, to=tmp_path / "new", operations=to)
    assert report.nodes == 3
    assert report.tensorflow == "2.14"
    assert _operations(tmp_path / "new") == _operations(both / to)
    found, wanted = (savedmodel.read(p).signatures[0] for p in (tmp_path / "new", both / to))
    assert found.function.chain == wanted.function.chain
    assert len(found.function.operations) == (3 if to == "tensorflow" else 0)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.saved_model.load(tmp_path / "new")(x)
    np.testing.assert_allclose(y, _smooth(PARAMS, X), rtol=1e-5)
    expected = jax.grad(lambda x: _smooth(PARAMS, x).sum())(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-5, atol=1e-6)


def test_operations_stay_where_nothing_else_is_asked_for(both, tmp_path):
    report = bridge.retarget(both / "tensorflow", "2.18", to=tmp_path / "cpu", platforms=["cpu"])
    assert report.tensorflow == "2.14"
    (signature,) = savedmodel.read(tmp_path / "cpu").signatures
    assert signature.function.call.platforms == ("cpu",)
    assert _operations(tmp_path / "cpu") == _operations(both / "tensorflow")
    bridge.retarget(
        both / "tensorflow", to=tmp_path / "less", gradient_order=0, disabled_checks=["platform"]
    )
    (signature,) = savedmodel.read(tmp_path / "less").signatures
    assert len(signature.function.operations) == 1
    assert list(map(str, signature.function.call.disabled_checks)) == ["platform"]


def test_the_command_takes_operations(both, tmp_path, capsys):
    target = str(tmp_path / "plain")
    assert main(["retarget", str(both / "xla"), target, "--operations", "tensorflow"]) == 0
    assert "3 calls of 3 modules, readable from TensorFlow 2.14 on" in capsys.readouterr().out
    assert "XlaCallModule" not in _operations(target)
