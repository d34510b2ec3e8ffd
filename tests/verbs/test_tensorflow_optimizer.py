"""What TensorFlow's optimizer would rewrite has the numbers of the file, however it is run."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from tests.matrix.families.plain_operations import LOOPS, PROGRAMS
from tests.tensorflow_modes import run_session

_CLOSE = {"dense layers of NaN", "convolution of NaN", "minimum of reciprocal roots"}
_NAMES = [*PROGRAMS]
_ARGUMENTS = {f"x{n}": x for n, (_, x) in enumerate(PROGRAMS.values())}


def _whole(arguments):
    return {f"y{n}": PROGRAMS[name][0](arguments[f"x{n}"]) for n, name in enumerate(_NAMES)}


def _assert_exact(got):
    """Compare with JAX, operation by operation, as XLA regroups what it compiles together, too."""
    with jax.disable_jit():
        wanted = _whole({key: jnp.asarray(x) for key, x in _ARGUMENTS.items()})
    for n, name in enumerate(_NAMES):
        one, other = np.asarray(got[f"y{n}"]), np.asarray(wanted[f"y{n}"])
        limit = 1e-5 if name in _CLOSE else 2e-7 if one.dtype.kind in "fc" else 0
        np.testing.assert_allclose(one, other, limit, err_msg=name)
        if one.dtype.kind == "f":
            signs = (np.signbit(each) & (each == 0) for each in (one, other))
            np.testing.assert_array_equal(*signs, err_msg=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimizer") / "model"
    bridge.save(_whole, folder, args=(_ARGUMENTS,), operations="tensorflow")
    return folder


_TENSORS = {key: tf.constant(x) for key, x in _ARGUMENTS.items()}
_FLAT = {f"arguments_{key}": x for key, x in _ARGUMENTS.items()}


def _signature(model):
    return model.signatures["serving_default"](**{key: tf.constant(x) for key, x in _FLAT.items()})


def _saved_again(model, folder):
    module = tf.Module()
    module.model, module.run = model, tf.function(model)
    module.run.get_concrete_function(_TENSORS)
    tf.saved_model.save(module, str(folder))
    return tf.saved_model.load(str(folder)).run(_TENSORS)


_RUNS = {
    "eager": lambda model, _: model(_TENSORS),
    "graph": lambda model, _: tf.function(model)(_TENSORS),
    "constants": lambda model, _: tf.function(lambda: model(_TENSORS))(),
    "signature": lambda model, _: _signature(model),
    "signature in a graph": lambda model, _: tf.function(lambda: _signature(model))(),
    "saved again": _saved_again,
}


@pytest.mark.parametrize("run", _RUNS)
def test_files(folder, run, tmp_path):
    _assert_exact(_RUNS[run](tf.saved_model.load(str(folder)), tmp_path / "again"))


def test_sessions(folder):
    _assert_exact(run_session(folder, "serving_default", _FLAT))


@pytest.mark.parametrize("run", ["eager", "graph", "constants", "saved again"])
def test_converted_functions(run, tmp_path):
    _assert_exact(_RUNS[run](bridge.convert(_whole, operations="tensorflow"), tmp_path / "again"))


def test_retargeted_files(tmp_path):
    bridge.save(_whole, tmp_path / "xla", args=(_ARGUMENTS,), gradient_order=0)
    bridge.retarget(tmp_path / "xla", to=tmp_path / "plain", operations="tensorflow")
    _assert_exact(run_session(tmp_path / "plain", "serving_default", _FLAT))


def _keeps_type(function, x):
    made = jax.eval_shape(function, x)
    return x.dtype.kind == "f" and (made.shape, made.dtype) == (x.shape, x.dtype)


_SAME_TYPE = [n for n, program in enumerate(PROGRAMS.values()) if _keeps_type(*program)]


@pytest.mark.parametrize("in_file", [False, True], ids=["converted", "file"])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_gradients(in_file, in_graph, tmp_path):
    arguments = {f"x{n}": _ARGUMENTS[f"x{n}"] for n in _SAME_TYPE}
    tensors = {key: tf.constant(x) for key, x in arguments.items()}

    @jax.custom_vjp
    def identity(given):
        return given

    def pulled_back(given, _):
        return ({key: PROGRAMS[_NAMES[int(key[1:])]][0](x) for key, x in given.items()},)

    identity.defvjp(lambda given: (given, given), pulled_back)
    model = bridge.convert(identity, operations="tensorflow")
    if in_file:
        bridge.save(identity, tmp_path / "model", args=(arguments,), operations="tensorflow")
        model = tf.saved_model.load(str(tmp_path / "model"))

    def gradient(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            results = model(given)
        return tape.gradient(results, given)

    got = (tf.function(gradient) if in_graph else gradient)(tensors)
    with jax.disable_jit():
        for key, x in arguments.items():
            function = PROGRAMS[_NAMES[int(key[1:])]][0]
            np.testing.assert_allclose(got[key], function(jnp.asarray(x)), 2e-7, err_msg=key)


_RUN_LOOP = """
import sys, numpy as np, tensorflow as tf
from tests.tensorflow_modes import run_session
x = np.float32([1, 2])
(session,) = run_session(sys.argv[1], "serving_default", {"x": x}).values()
eager = tf.saved_model.load(sys.argv[1])(tf.constant(x))
np.save(sys.argv[2], [session, eager])
"""


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_constants(name, tmp_path, preloaded_python):
    """TensorFlow would run them on the stack before the first call, which ends the process."""
    x = np.float32([1, 2])
    bridge.save(LOOPS[name], tmp_path / "model", args=(x,), operations="tensorflow")
    command = [preloaded_python, "-c", _RUN_LOOP, tmp_path / "model", tmp_path / "got.npy"]
    subprocess.run(command, check=True, timeout=120)
    for got in np.load(tmp_path / "got.npy"):
        np.testing.assert_allclose(got, jax.jit(LOOPS[name])(x), rtol=1e-4)


def test_functions_that_assign(tmp_path):
    def step(state, arguments):
        return state + 1, _whole(arguments)

    bridge.save(
        step, tmp_path / "model", params=np.float32(1), args=(_ARGUMENTS,), updates=0,
        operations="tensorflow", gradient_order=0,
    )  # fmt: skip
    model = tf.saved_model.load(str(tmp_path / "model"))
    for run in (model, tf.function(model)):
        _assert_exact(run(_TENSORS))
    assert model.params.numpy() == 3


def test_layers(tmp_path):
    keras = pytest.importorskip("keras")
    from bridge.keras import ExportedLayer

    def layered(x):
        return jnp.maximum(x, 2.0 * x) + jnp.max(jnp.log(x), 1, keepdims=True)

    inputs = keras.Input((3,))
    outputs = ExportedLayer(layered, operations="tensorflow")(inputs)
    model = keras.Model(inputs, outputs)
    x = np.float32([[-2, 0.5, 0.25], [3, 0.5, 0.25]])
    wanted = layered(jnp.asarray(x))
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, 2e-7)
    model.export(str(tmp_path / "model"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "model")).serve(tf.constant(x))
    np.testing.assert_allclose(served, wanted, 2e-7)
