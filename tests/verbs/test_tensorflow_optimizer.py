"""What TensorFlow's optimizer would rewrite has the numbers that the file says, however it is run.

Each program is one that Grappler of TensorFlow 2.21 computes otherwise where it sees it.
"""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import bridge
from tests.tensorflow_modes import run_session


def _row(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)


_WEIGHTS = [np.random.default_rng(n).normal(size=s) for n, s in enumerate([(8, 16), (16, 4)])]
_WEIGHTS = [weights.astype(np.float32) for weights in _WEIGHTS]
_IMAGES = np.random.default_rng(3).normal(size=(1, 6, 6, 3)).astype(np.float32)
_KERNEL = np.random.default_rng(4).normal(size=(3, 3, 3, 4)).astype(np.float32)


def _dense(x):
    return jax.nn.relu(x @ _WEIGHTS[0] + 1.0) @ _WEIGHTS[1] + 2.0


def _convolved(x):
    numbers = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(x, _KERNEL, (1, 1), "SAME", dimension_numbers=numbers)
    return jax.nn.relu(made + np.float32(0.5))


_WITH_NAN = np.ones((2, 8), np.float32)
_WITH_NAN[1, 3] = np.nan
_HOLED = np.where(_IMAGES.max() == _IMAGES, np.nan, _IMAGES)
_BIG = np.float32(12582912)
# Functions of one argument, and the argument.
PROGRAMS = {
    "maximum with a multiple": (lambda x: jnp.maximum(x, 2.0 * x), _row(-1, 0.5, 3)),
    "minimum with a multiple": (lambda x: jnp.minimum(0.5 * x, x), _row(-1, 0.5, 3)),
    "constants that cancel": (lambda x: (x + _BIG) - _BIG, _row(0.4, 1.6, 3.2)),
    "constants before": (lambda x: (_BIG + x) - _BIG, _row(0.4, 1.6, 3.2)),
    "factors that overflow": (lambda x: x * 256 * 256, _row(0, 0.001, dtype=np.float16)),
    "divisors that overflow": (lambda x: x / 1e30 / 1e30 * 1e30, _row(1e30, 3)),
    "maximum of logarithms": (lambda x: jnp.max(jnp.log(x), 1), _row([-2, 0.5, 0.25])),
    "maximum of roots": (lambda x: jnp.max(jnp.sqrt(x), 1), _row([-2, 0.5, 0.25])),
    "minimum of reciprocal roots": (lambda x: jnp.min(lax.rsqrt(x), 1), _row([-2, 0.5, 0.25])),
    "sums regrouped": (lambda x: _row(1, 1) + (_row(-1e10, -1e10) + x), _row([1e10, 1e10])),
    "sums of one shape": (lambda x: (x[0] + x[1]) + (x[2] + x[3]), _row(1, 1e10, -1e10, 1)),
    "squared difference of uint8": (lambda x: (x - x[::-1]) ** 2, _row(3, 5, dtype=np.uint8)),
    "squared difference of int16": (lambda x: (x - x[::-1]) ** 2, _row(-3, 5, dtype=np.int16)),
    "dense layers of NaN": (_dense, _WITH_NAN),
    "convolution of NaN": (_convolved, _HOLED),
    "complement of an order": (lambda x: ~(x < 1), _row(np.nan, 0, 2)),
    "product with zero": (lambda x: x * 0.0, _row(np.inf, np.nan, -3)),
    "difference from itself": (lambda x: x - x, _row(np.inf, np.nan, -3)),
    "quotient by itself": (lambda x: x / x, _row(0, np.inf, np.nan, -3)),
    "difference from zero": (lambda x: 0.0 - x, _row(0, -0.0)),
    "zero less unsigned": (lambda x: jnp.uint8(0) - x, _row(0, 3, dtype=np.uint8)),
    "root by a power": (lambda x: x**0.5, _row(-np.inf, -0.0, 4)),
    "power of zero": (lambda x: x**0.0, _row(np.nan, np.inf, 0)),
    "common factor": (lambda x: x * 3e38 - x * 2.9e38, _row(1, 2)),
    "abs of a square root": (lambda x: jnp.abs(jnp.sqrt(x)), _row(-1, 4)),
    "conjugate of a transpose": (lambda x: jnp.conj(x.T), _row([1 + 2j, 3j], dtype=np.complex64)),
}
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


def _sums(count):
    return lax.scan(lambda c, i: (jnp.sin(c) + i, None), 0.0, jnp.arange(float(count)))[0]


_LOOPS = {
    "loop": lambda x: x + _sums(20000),
    "loop of loops": lambda x: x + lax.fori_loop(0, 50, lambda i, c: c + _sums(400), 0.0),
    "loop in a branch": lambda x: lax.cond(x[0] > 0, lambda: x + _sums(20000), lambda: x),
    "loop that ends by a test": lambda x: (
        x
        + lax.while_loop(lambda c: c[0] < 20000, lambda c: (c[0] + 1, jnp.sin(c[1]) + 1), (0, 0.0))[
            1
        ]
    ),
}
_RUN_LOOP = """
import sys, numpy as np, tensorflow as tf
from tests.tensorflow_modes import run_session
x = np.float32([1, 2])
(session,) = run_session(sys.argv[1], "serving_default", {"x": x}).values()
eager = tf.saved_model.load(sys.argv[1])(tf.constant(x))
np.save(sys.argv[2], [session, eager])
"""


@pytest.mark.parametrize("name", _LOOPS)
def test_loops_of_constants(name, tmp_path, preloaded_python):
    """TensorFlow would run them on the stack before the first call, which ends the process."""
    x = np.float32([1, 2])
    bridge.save(_LOOPS[name], tmp_path / "model", args=(x,), operations="tensorflow")
    command = [preloaded_python, "-c", _RUN_LOOP, tmp_path / "model", tmp_path / "got.npy"]
    subprocess.run(command, check=True, timeout=120)
    for got in np.load(tmp_path / "got.npy"):
        np.testing.assert_allclose(got, jax.jit(_LOOPS[name])(x), rtol=1e-4)
