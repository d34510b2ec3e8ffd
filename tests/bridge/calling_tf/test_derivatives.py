"""Derivatives of TensorFlow's loops over lists, compiled for JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module.errors import StructureError

X = np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)
SEQUENCES = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(2, 2, 3)


@tf.function
def times_its_sum(row):
    return tf.sin(row) * tf.reduce_sum(row)


def mapped(x):
    return tf.map_fn(times_its_sum, x)


def mapped_by_jax(x):
    return jax.lax.map(lambda row: jnp.sin(row) * row.sum(), x)


@tf.function
def scanned(x):
    return tf.scan(lambda carry, row: carry * row + tf.sin(row), x)


def scanned_by_jax(x):
    def step(carry, row):
        following = carry * row + jnp.sin(row)
        return following, following

    return jnp.concatenate([x[:1], jax.lax.scan(step, x[0], x[1:])[1]])


def loss_of(function):
    return lambda x: (function(x) ** 2).sum()


DERIVATIVES = {
    "grad": lambda f: jax.jit(jax.grad(loss_of(f))),
    "order 2": lambda f: jax.jit(jax.grad(lambda x: (jax.grad(loss_of(f))(x) ** 2).sum())),
    "jvp": lambda f: jax.jit(lambda x: jax.jvp(loss_of(f), (x,), (x + 1.0,))),
    "vmap of grad": lambda f: jax.jit(lambda x: jax.vmap(jax.grad(loss_of(f)))(x[None] * 2.0)),
}
CASES = [("map_fn", "order 2"), ("map_fn", "vmap of grad"), ("scan", "grad"), ("scan", "jvp")]
LOOPS = {"map_fn": (mapped, mapped_by_jax), "scan": (scanned, scanned_by_jax)}


@pytest.mark.parametrize(("loop", "how"), CASES)
def test_derivatives_of_loops_are_those_of_jax(loop, how):
    inside, outside = LOOPS[loop]
    found = DERIVATIVES[how](bridge.call_tf(inside))(X)
    expected = DERIVATIVES[how](outside)(X)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


def test_a_recurrent_layer_has_gradients_by_its_variables():
    layer = keras.layers.LSTM(2, return_sequences=True)
    layer.build(SEQUENCES.shape)
    called = bridge.call_tf(layer, variables="argument")
    gradient = jax.jit(jax.grad(lambda v, x: (called(v, x) ** 2).sum(), argnums=(0, 1)))
    found, by_inputs = gradient(called.variables(SEQUENCES), SEQUENCES)
    x = tf.constant(SEQUENCES)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x) ** 2)
    own = [variable.value for variable in layer.trainable_variables]
    *expected, expected_by_inputs = tape.gradient(loss, [*own, x])
    assert len(found) == len(own) == 3
    for variable, value in zip(own, expected, strict=True):
        np.testing.assert_allclose(found[variable.name.partition(":")[0]], value, atol=1e-6)
    np.testing.assert_allclose(by_inputs, expected_by_inputs, atol=1e-6)


def test_an_argument_given_twice_has_two_gradients():
    called = bridge.call_tf(
        lambda x, y: tf.map_fn(
            lambda rows: rows[0] * tf.sin(rows[1]), (x, y), fn_output_signature=tf.float32
        )
    )
    found = jax.jit(jax.grad(lambda x, y: called(x, y).sum(), argnums=(0, 1)))(X, X)
    np.testing.assert_allclose(found[0], np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(found[1], X * np.cos(X), rtol=1e-6)


def test_a_branch_inside_of_a_loop_has_gradients():
    def step(index, carry):
        return index + 1, tf.cond(index % 2 == 0, lambda: tf.sin(carry), lambda: carry * carry)

    def function(x):
        start = (tf.constant(0), x)
        return tf.while_loop(lambda i, _: i < 3, step, start, maximum_iterations=3)[1]

    x = np.float32([0.3, 0.7])
    found = jax.jit(jax.grad(lambda x: bridge.call_tf(function)(x).sum()))(x)
    expected = jax.grad(lambda x: jnp.sin(jnp.sin(x) ** 2).sum())(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@tf.custom_gradient
def tripled(x):
    return x * x, lambda cotangent: 3.0 * x * cotangent


def test_a_gradient_that_tensorflow_was_told_is_taken_inside_of_a_loop():
    weight = tf.Variable(2.0, name="weight")
    called = bridge.call_tf(
        lambda x: tf.map_fn(lambda row: tripled(row * weight), x), variables="argument"
    )
    given = called.variables(X[0])
    found = jax.jit(jax.grad(lambda w, x: called(w, x).sum(), argnums=(0, 1)))(given, X[0])
    np.testing.assert_allclose(found[0]["weight"], 3.0 * (2.0 * X[0] * X[0]).sum(), rtol=1e-5)
    np.testing.assert_allclose(found[1], 3.0 * 4.0 * X[0], rtol=1e-5)
    pushed = jax.jvp(lambda x: called(given, x), (X[0],), (X[0],))[1]
    np.testing.assert_allclose(pushed, 12.0 * X[0] * X[0], rtol=1e-5)
    activated = jax.grad(lambda x: bridge.call_tf(lambda x: tf.map_fn(tf.nn.silu, x))(x).sum())
    np.testing.assert_allclose(
        activated(X[0]), jax.grad(lambda x: jax.nn.silu(x).sum())(X[0]), rtol=1e-5
    )


def test_such_a_loop_inside_of_a_function_is_refused():
    called = bridge.call_tf(tf.function(lambda x: tf.map_fn(tripled, x), autograph=False))
    with pytest.raises(StructureError, match=r"keeps values .*move it out of every tf\.f"):
        jax.grad(lambda x: called(x).sum())(X[0])
    called = bridge.call_tf(tf.function(lambda x: tf.map_fn(tripled, x)), compiled=False)
    found = jax.grad(lambda x: called(x).sum())(X[0])
    np.testing.assert_allclose(found, 3.0 * X[0], rtol=1e-6)
