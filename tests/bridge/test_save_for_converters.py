"""Files for what reads the graph and does not run it, read by TensorFlow's converter to TFLite."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import bridge.serving
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.read import read_proto
from tests.bridge.for_converters import MODELS, inputs_of, result_of
from xla_call_module.errors import StructureError

REFUSING = {"Assert", "EnsureShape", "If", "MutexV2", "PreventGradient", "XlaCallModule"}
PLAIN = {"operations": "tensorflow"}
OPEN = {**PLAIN, "for_converters": True}


def nodes_of(path):
    (graph,) = read_proto(path).meta_graphs
    functions = graph.graph_def.library.function
    return [*graph.graph_def.node, *(node for f in functions for node in f.node_def)]


def operations_of(path):
    return {node.op for node in nodes_of(path)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("for_converters")
    for name, (function, params, args) in MODELS.items():
        bridge.save(function, folder / name, params=params, args=args, **OPEN)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_converter_to_tflite_makes_the_same(files, name, tmp_path):
    """In a process of its own, which what the converter cannot read has ended."""
    program = (
        "import sys, tensorflow as tf; made = tf.lite.TFLiteConverter.from_saved_model("
        "sys.argv[1]).convert(); open(sys.argv[2], 'wb').write(made)"
    )
    target = tmp_path / "model.tflite"
    command = [sys.executable, "-c", program, str(files / name), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with pytest.warns(UserWarning, match="tf.lite.Interpreter is deprecated"):
        runner = tf.lite.Interpreter(str(target)).get_signature_runner()
    (key,) = runner.get_input_details()
    for x in inputs_of(name):
        (found,) = runner(**{key: x}).values()
        np.testing.assert_allclose(found, result_of(name, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_refuses_or_locks_and_sizes_are_of_32_bits(files, name):
    assert operations_of(files / name).isdisjoint(REFUSING)
    assert not read_proto(files / name).meta_graphs[0].graph_def.library.registered_gradients
    constants = [n for n in nodes_of(files / name) if n.op == "Const"]
    assert constants
    assert "int64" not in {decode_tensor(n.attr["value"].tensor).dtype.name for n in constants}
    assert bridge.verify(files / name).passed


def test_no_name_begins_with_that_of_a_constant(files):
    """The converter to TensorFlow.js would take it, in a loop, for the constant."""
    (graph,) = read_proto(files / "constants").meta_graphs
    for function in graph.graph_def.library.function:
        constants = tuple(n.name for n in function.node_def if n.op == "Const")
        others = [n.name for n in function.node_def if n.op != "Const"]
        others += [argument.name for argument in function.signature.input_arg]
        assert not [name for name in others if name.startswith(constants)]


def test_integers_of_64_bits_stay_what_they_are(tmp_path):
    """Only what counts is narrowed, and no number of the program."""

    def wide(x, n):
        large = n.astype(jnp.int64) * n * x.shape[0]
        return (large % 1000003).astype(jnp.int32), jnp.concatenate([x, x])

    with jax.enable_x64(True):
        bridge.save(wide, tmp_path / "model", args="f32[b], i32[]", **OPEN)
        wanted = wide(np.ones(3, np.float32), jnp.int32(2**20 + 7))
    found = tf.saved_model.load(tmp_path / "model")(np.ones(3, np.float32), np.int32(2**20 + 7))
    assert [part.numpy().tolist() for part in found] == [part.tolist() for part in wanted]


def test_unsigned_numbers_stay_what_they_are(tmp_path):
    def unsigned(x):
        return x // jnp.uint32(3), x > jnp.uint32(2**31)

    bridge.save(unsigned, tmp_path / "model", args="u32[b]", **OPEN)
    x = np.array([1, 2**31 + 5, 2**32 - 1], np.uint32)
    found = tf.saved_model.load(tmp_path / "model")(x)
    for part, wanted in zip(found, unsigned(x), strict=True):
        np.testing.assert_array_equal(part, wanted)


def added(params, x, y):
    return x @ params["w"] + y


@pytest.fixture(scope="module")
def other_files(tmp_path_factory):
    """Files with gradients that compare sizes, of modules and of plain operations."""
    folder = tmp_path_factory.mktemp("others")
    options = {"params": {"w": np.eye(3, dtype=np.float32)}, "args": "f32[b,3], f32[b,3]"}
    bridge.save(added, folder / "xla", **options, gradient_order=2)
    bridge.save(added, folder / "tensorflow", **options, **PLAIN)
    return folder


@pytest.mark.parametrize("name", ["xla", "tensorflow"])
def test_retarget_opens_a_file_and_closes_it(other_files, name, tmp_path):
    assert operations_of(other_files / name) & REFUSING >= {"EnsureShape", "PreventGradient"}
    bridge.retarget(other_files / name, to=tmp_path / "open", **OPEN)
    assert operations_of(tmp_path / "open").isdisjoint(REFUSING | {"Equal"})
    library = read_proto(tmp_path / "open").meta_graphs[0].graph_def.library
    assert not any("_noinline" in function.attr for function in library.function)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "open")(x, x), x + x)
    # What it is is left as it is, and is another one where that is asked for.
    bridge.retarget(tmp_path / "open", to=tmp_path / "left", disabled_checks=["platform"])
    assert operations_of(tmp_path / "left") == operations_of(tmp_path / "open")
    bridge.retarget(tmp_path / "open", to=tmp_path / "closed", **PLAIN)
    library = read_proto(tmp_path / "closed").meta_graphs[0].graph_def.library
    assert any("_noinline" in function.attr for function in library.function)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.saved_model.load(tmp_path / "closed")(x, x[:1])


def counted(state, x):
    return {"n": state["n"] + x.sum()}, x * state["n"]


def test_updates_lock_nothing_until_a_file_is_for_servers_again(tmp_path):
    options = {"params": {"n": np.float32(1)}, "args": "f32[b]", "updates": 0}
    bridge.save(counted, tmp_path / "saved", **options, **OPEN)
    bridge.save(counted, tmp_path / "xla", **options)
    bridge.retarget(tmp_path / "xla", to=tmp_path / "opened", **OPEN)
    for name in ("saved", "opened"):
        assert operations_of(tmp_path / name).isdisjoint(REFUSING)
        loaded = tf.saved_model.load(tmp_path / name)
        assert [float(loaded(np.ones(3, np.float32))[0]) for _ in range(3)] == [1, 4, 7]
        bridge.retarget(tmp_path / name, to=tmp_path / f"{name}_plain", **PLAIN)
        assert "MutexV2" in operations_of(tmp_path / f"{name}_plain")
        bridge.retarget(tmp_path / name, to=tmp_path / f"{name}_xla", operations="xla")
        library = read_proto(tmp_path / f"{name}_xla").meta_graphs[0].graph_def.library
        assert any("_XlaMustCompile" in function.attr for function in library.function)


def test_what_it_is_no_use_for_is_refused(files, tmp_path):
    options = {"args": "f32[b]", "for_converters": True}
    with pytest.raises(StructureError, match=r"operations is 'xla'.*leave out for_converters"):
        bridge.save(jnp.sin, tmp_path / "model", **options)
    with pytest.raises(StructureError, match="operations= is missing"):
        bridge.retarget(files / "mlp", to=tmp_path / "model", for_converters=True)
    for verb in (bridge.serving.publish, bridge.serving.compose):
        with pytest.raises(
            StructureError, match=f"{verb.__name__} writes files that TensorFlow runs"
        ):
            verb(jnp.sin, tmp_path / "model", **options, **PLAIN)
    assert not list(tmp_path.iterdir())
