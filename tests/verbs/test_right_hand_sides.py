"""A batch of any size against one matrix: JAX makes right-hand sides of it, in every form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess
from tests.bridge.onnx.checking import run

pytestmark = pytest.mark.usefixtures("on_the_cpu")

_RANDOM = np.random.default_rng(0)
MATRIX = _RANDOM.normal(size=(4, 4)).astype(np.float32)
ROWS = _RANDOM.normal(size=(3, 4)).astype(np.float32)


def _positive(matrix):
    return matrix @ matrix.T + 2 * jnp.eye(4)


def _tridiagonal(matrix, x):
    below, above = matrix[0] * (np.arange(4) > 0), matrix[1] * (np.arange(4) < 3)
    return lax.linalg.tridiagonal_solve(below, 4 + matrix[2], above, x.T)


# Each of a matrix and a batch of rows.
FUNCTIONS = {
    "density": lambda a, x: jax.scipy.stats.multivariate_normal.logpdf(
        x, jnp.zeros(4), _positive(a)
    ),
    "triangle": lambda a, x: jsl.solve_triangular(_positive(a), x.T, lower=True),
    "triangle_on_the_right": lambda a, x: lax.linalg.triangular_solve(
        _positive(a), x, left_side=False, transpose_a=True, unit_diagonal=True
    ),
    "cholesky": lambda a, x: jsl.cho_solve(jsl.cho_factor(_positive(a)), x.T),
    "lu": lambda a, x: jsl.lu_solve(jsl.lu_factor(_positive(a)), x.T),
    "mapped": jax.vmap(lambda a, x: jnp.linalg.solve(_positive(a), x), (None, 0)),
    "tridiagonal": _tridiagonal,
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def _close(got, wanted):
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(got, wanted, atol=2e-5 * float(np.abs(wanted).max()))


def _loss(function):
    return lambda a, x: jnp.sum(jnp.sin(function(a, x)))


def _gradients(function):
    """The gradients of a loss, and those of the sum of their cosines."""
    first = jax.grad(_loss(function), argnums=(0, 1))

    def second(a, x):
        return sum(jnp.sum(jnp.cos(part)) for part in first(a, x))

    return first, jax.grad(second, argnums=(0, 1))


@each_function
@pytest.mark.parametrize("operations", ["xla", "tensorflow"])
def test_a_file_and_two_orders_of_gradients(tmp_path, name, operations):
    function = FUNCTIONS[name]
    bridge.save(
        lambda params, x: function(params["a"], x),
        tmp_path / "model",
        params={"a": MATRIX},
        args="f32[b,4]",
        gradient_order=2,
        operations=operations,
    )
    loaded = tf.saved_model.load(tmp_path / "model")
    matrix, rows = loaded.params["a"], tf.constant(ROWS)
    with tf.GradientTape() as outer:
        outer.watch(rows)
        with tf.GradientTape() as inner:
            inner.watch(rows)
            result = loaded(rows)
            loss = tf.reduce_sum(tf.sin(result))
        first = inner.gradient(loss, [matrix, rows])
        total = tf.add_n([tf.reduce_sum(tf.cos(part)) for part in first])
    second = outer.gradient(total, [matrix, rows])
    _close(result, function(MATRIX, ROWS))
    for got, gradient in zip((first, second), _gradients(function), strict=True):
        for one, wanted in zip(got, gradient(MATRIX, ROWS), strict=True):
            _close(one, wanted)


@each_function
def test_onnx_and_its_gradients(name):
    function = FUNCTIONS[name]
    model = bridge.to_onnx(function, args="f32[4,4], f32[b,4]")
    (result,) = run(model, [MATRIX, ROWS])
    _close(result, function(MATRIX, ROWS))
    first, second = _gradients(function)
    for gradient in (first, second):
        model = bridge.to_onnx(gradient, args="f32[4,4], f32[b,4]")
        for got, wanted in zip(run(model, [MATRIX, ROWS]), gradient(MATRIX, ROWS), strict=True):
            _close(got, wanted)


@pytest.fixture(scope="module")
def litert_process():
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("ai_edge_litert")
    with LiteRTProcess() as process:
        yield process


@each_function
def test_litert_and_its_gradients(name, litert_process):
    function = FUNCTIONS[name]
    for computed in (function, *_gradients(function)):
        model = bridge.to_litert(computed, args="f32[4,4], f32[b,4]", verify=False)
        with Runtime(model, process=litert_process) as runtime:
            (signature,) = runtime.contents.signatures
            names = [tensor.name for tensor in signature.inputs]
            found = runtime.run(dict(zip(names, (MATRIX, ROWS), strict=True)))
        wanted = jax.tree.leaves(computed(MATRIX, ROWS))
        for got, one in zip(found.values(), wanted, strict=True):
            _close(got, one)


def test_a_gradient_of_an_exported_without_one(tmp_path):
    """It is made of the operations, and they are differentiated by the same rule."""
    function = FUNCTIONS["density"]
    specs = export.symbolic_args_specs((MATRIX, ROWS), ("4, 4", "b, 4"))
    blob = export.export(jax.jit(function))(*specs).serialize(vjp_order=0)
    bridge.save(export.deserialize(blob), tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    matrix = tf.constant(MATRIX)
    with tf.GradientTape() as tape:
        tape.watch(matrix)
        loss = tf.reduce_sum(tf.sin(loaded(matrix, tf.constant(ROWS))))
    _close(tape.gradient(loss, matrix), jax.grad(_loss(function))(MATRIX, ROWS))
