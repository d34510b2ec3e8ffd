"""Gradients beyond those that an `Exported` was serialized with, by every option of `save`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge

_SHAPES = ("4, 2", "b, 2")
_ORDERS = (0, 1)  # those that the `Exported` was serialized with
_RESIDUALS = (False, True)
_RELEASES = (None, "2.17")
_W, _X = np.eye(2, dtype="float32") / 2, np.arange(8, dtype="float32").reshape(4, 2) / 8


def _function(w, x):
    return jnp.sin(x @ w) * x


@pytest.fixture(scope="module")
def serialized():
    """The function, by its shape and the order that it was serialized with."""
    made = {}
    for shape in _SHAPES:
        specs = [jax.ShapeDtypeStruct(export.symbolic_shape(s), "float32") for s in ("2, 2", shape)]
        exported = export.export(jax.jit(_function))(*specs)
        for order in _ORDERS:
            made[shape, order] = export.deserialize(exported.serialize(vjp_order=order))
    return made


@pytest.mark.parametrize(
    ("shape", "order", "residuals", "release"),
    list(itertools.product(_SHAPES, _ORDERS, _RESIDUALS, _RELEASES)),
)
def test_gradients_of_two_orders(shape, order, residuals, release, serialized, tmp_path):
    exported, path = serialized[shape, order], tmp_path / "m"
    bridge.save(exported, path, gradient_order=2, residuals=residuals, tensorflow=release)
    expected = [
        derivative(lambda w: _function(w, _X).sum())(_W) for derivative in (jax.grad, jax.hessian)
    ]
    loaded = bridge.load(path)
    sources = [loaded.default.gradient_source(n) for n in (1, 2)]
    assert sources == ["saved" if n < order else "lifted" for n in range(2)]
    for derivative, wanted in zip((jax.grad, jax.hessian), expected, strict=True):
        found = derivative(lambda w: loaded(w, _X).sum())(_W)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    if release is None:
        for one, wanted in zip(_derivatives_in_tensorflow(path), expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-6)


def _derivatives_in_tensorflow(path):
    """Return the gradient and the Hessian by tapes, which pull back each element of it."""
    call = tf.saved_model.load(str(path))
    w = tf.constant(_W)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            total = tf.reduce_sum(call(w, tf.constant(_X)))
        gradient = inner.gradient(total, w)
    return gradient, outer.jacobian(gradient, w, experimental_use_pfor=False)
