"""The functions of the option tables, and what JAX and TensorFlow say of their derivatives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import export

import bridge

HOISTED = {"default": {}, "none": {"hoist_constants": None}, "all": {"hoist_constants": 0}}
CHECKS = {"none": (), "platform": ("platform",), "shape_assertions": ("shape_assertions",)}
W = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
TABLE = np.linspace(1, 2, 9, dtype=np.float32).reshape(3, 3)  # what functions close over
X = np.linspace(-0.7, 0.9, 12, dtype=np.float32).reshape(4, 3)
Y = np.float32(1.3)
N = np.array([3, 1, 0, 2], np.int32)


def elementwise(w, x, y):
    return jnp.sin(x) * y * w.sum()


def product(w, x, y):
    return jnp.tanh(x @ w @ TABLE) ** 2 * y


def chosen(w, x, y):
    z = x @ w
    return jax.lax.platform_dependent(
        z, y, cpu=lambda z, y: jnp.exp(z) * y, default=lambda z, y: jnp.cos(z) - y
    )


def unused(w, x, y):
    """It depends on no value at all."""
    return jnp.zeros_like(x) + 2.5


@jax.custom_vjp
def _scaled(x, y, w):
    return x * 2


def _scaled_backward(kept, ct):
    x, y, w = kept
    return ct @ w * y, (ct * jnp.sin(x)).sum(), x.T @ ct


_scaled.defvjp(lambda x, y, w: (x * 2, (x, y, w)), _scaled_backward)


def written(w, x, y):
    """Compute without `w` and `y`, of which it has gradients all the same."""
    return _scaled(x, y, w) * x


def factored(w, x, y):
    return x @ jnp.linalg.cholesky(w @ w.T + jnp.eye(3) * (1 + y * y))


def looped(w, x, y):
    return jax.lax.scan(lambda z, _: (jnp.tanh(z @ w + y), None), x, None, length=3)[0]


FUNCTIONS = {
    f.__name__: f for f in (elementwise, product, chosen, unused, written, factored, looped)
}


def of_parameters(name):
    """A function of parameters, a batch of rows, a scalar, and an integer for each row."""

    def call(params, x, y, n):
        return {"count": n + 1, "z": FUNCTIONS[name](params["w"], x, y)}

    call.__name__ = name
    return call


def of_arguments(name):
    """The same without parameters."""
    called = of_parameters(name)

    def call(x, y, n):
        return called({"w": W}, x, y, n)

    call.__name__ = name
    return call


def of_origin(row, path):
    """The file of a row: the one that was written, or what became of it."""
    if row["origin"] == "retargeted":
        options = {} if row["platforms"] == "one" else {"platforms": ("cpu", "cuda")}
        older = path.with_name("older")
        bridge.retarget(path, "2.15", to=older, **options)
        return older
    if row["origin"] == "saved again":
        loaded, again = tf.saved_model.load(path), path.with_name("again")
        tf.saved_model.save(loaded, again, signatures=loaded.signatures)
        return again
    return path


def specs(sizes):
    """The specs of the arguments, of four rows or of any number of them."""
    rows = 4 if sizes == "static" else export.symbolic_shape("b")[0]
    return (
        jax.ShapeDtypeStruct((rows, 3), "float32"),
        jax.ShapeDtypeStruct((), "float32"),
        jax.ShapeDtypeStruct((rows,), "int32"),
    )


def jax_loss(call):
    """Return what is differentiated: not the result alone, so that a gradient of None is seen."""
    return lambda *floats: (call(*floats) * jnp.cos(X)).sum() + sum((f**3).sum() for f in floats)


def jax_gradients(call, floats, order):
    """For each order the gradients of the loss, and of the sum of those of the order before."""
    loss, positions = jax_loss(call), tuple(range(len(floats)))
    for _ in range(order):
        gradient = jax.jit(jax.grad(loss, positions))
        yield gradient(*floats)

        def loss(*floats, gradient=gradient):
            return sum(g.sum() for g in gradient(*floats))


@functools.cache
def expected(name, *, of_weights):
    """In JAX the result, and for two orders the gradients of x, y and perhaps the weights."""
    call = lambda x, y, w=W: FUNCTIONS[name](w, x, y)  # noqa: E731
    floats = (X, Y, W) if of_weights else (X, Y)
    return np.asarray(call(*floats)), list(jax_gradients(call, floats, 2))


MODES = {
    "eager": lambda run: run,
    "graph": functools.partial(tf.function, autograph=False),
    "jit": functools.partial(tf.function, autograph=False, jit_compile=True),
}


def tensorflow_gradients(call, mode, order, weights=()):
    """In TensorFlow the result, and for each order the gradients of x, y and the weights.

    Args:
        call: from x, y and n to the results.
        mode: one of `MODES`.
        order: how many there are.
        weights: variables that it reads.
    """

    def differentiate(x, y, order):
        """The result, and for each order the gradients; a tape for each is around."""
        if order == 0:
            found = call(x, y, tf.constant(N))
            loss = tf.reduce_sum(found["z"] * np.cos(X))
            return found, loss + sum(tf.reduce_sum(f**3) for f in (x, y, *weights)), []
        with tf.GradientTape() as tape:
            tape.watch([x, y, *weights])
            found, loss, lower = differentiate(x, y, order - 1)
        pulled = tape.gradient(loss, [x, y, *weights], unconnected_gradients="zero")
        return found, tf.add_n([tf.reduce_sum(g) for g in pulled]), [*lower, pulled]

    @MODES[mode]
    def run(x, y):
        found, _, gradients = differentiate(x, y, order)
        return found, gradients

    with tf.device("/CPU:0"):
        found, gradients = run(tf.constant(X), tf.constant(Y))
    np.testing.assert_array_equal(found["count"], N + 1)
    return found["z"], gradients


def assert_same(found, wanted):
    """Assert that results or gradients are the same up to rounding."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-4, atol=2e-5)
