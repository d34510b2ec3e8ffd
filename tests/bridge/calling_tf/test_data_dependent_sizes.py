"""Sizes inside of a TensorFlow function that depend on data, where those of its results do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge import jax2tf
from xla_call_module.errors import StructureError, VersionError

X = np.array([1, -2, 3, -4, 5, -7], np.float32)
SPEC = jax.ShapeDtypeStruct(X.shape, X.dtype)


def positive(x):
    return tf.boolean_mask(x, x > 0)


def negative(x):
    return tf.boolean_mask(x, x < 0)


def weighted(x):
    return tf.reduce_sum(x * tf.cast(tf.range(1, tf.shape(x)[0] + 1), tf.float32))


def mean(x):
    return tf.reduce_mean(positive(x))


COMPUTED = {
    "mean": mean,
    "cumsum": lambda x: weighted(tf.cumsum(positive(x))),
    "sizes": lambda x: tf.cast(tf.shape(tf.where(x > 0))[0], tf.float32) * tf.reduce_sum(x),
    "unique": lambda x: tf.cast(tf.size(tf.unique(tf.cast(x, tf.int32) % 3)[0]), tf.float32) * x[0],
    "from_dense": lambda x: tf.reduce_sum(tf.sparse.from_dense(tf.nn.relu(x)).values ** 2),
    "softmax": lambda x: weighted(tf.nn.softmax(negative(x))),
    "last column": lambda x: weighted(tf.boolean_mask(tf.stack([x, x * x], 1), x > 0)[:, -1]),
    "none": lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 100)) + x[-1],
    "last": lambda x: positive(x)[tf.shape(positive(x))[0] - 1] ** 2,
    "gather": lambda x: weighted(tf.gather(positive(x), [2, 0]) ** 2),
    "joined": lambda x: weighted(tf.concat([[2.0], negative(x)], 0)),
}
# Without gradients that XLA compiles.
FORWARD = {
    "sort": lambda x: weighted(tf.sort(positive(x))),
    "partition": lambda x: [weighted(part) for part in tf.dynamic_partition(x, [0, 1] * 3, 2)],
    "join": lambda x: tf.reduce_sum(tf.concat([positive(x), negative(x) ** 2], 0)),
}
MISREAD = {
    "last": lambda x: positive(x)[-1],
    "last two": lambda x: weighted(positive(x)[-2:]),
    "roll": lambda x: weighted(tf.roll(positive(x), 1, 0)),
    "exclusive": lambda x: weighted(tf.cumsum(positive(x), exclusive=True)),
    "first of joined": lambda x: weighted(tf.concat([positive(x), negative(x)], 0)[:6]),
    "joined with fixed": lambda x: weighted(tf.concat([positive(x), negative(x)], 0) * x),
    "nested": tf.function(lambda x: tf.function(lambda m: m[-1])(positive(x))),
    "after an axis": lambda x: weighted(tf.boolean_mask(tf.stack([x, x], 1), x > 0)[..., -1:, 0]),
}


@pytest.mark.parametrize("name", [*COMPUTED, *FORWARD])
def test_results_are_tensorflow_s(name):
    function = (COMPUTED | FORWARD)[name]
    called = bridge.call_tf(function)
    np.testing.assert_allclose(jax.jit(called)(X), function(tf.constant(X)), rtol=1e-6)
    assert np.isfinite(called(X)).all()


@pytest.mark.parametrize("name", COMPUTED)
def test_gradients_are_tensorflow_s(name):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = COMPUTED[name](x)
    expected = tf.convert_to_tensor(tape.gradient(result, x))
    called = bridge.call_tf(COMPUTED[name])
    np.testing.assert_allclose(jax.jit(jax.grad(called))(X), expected, rtol=1e-5)


def test_every_element_of_a_batch_has_its_own_size():
    batch = np.stack([X, -X, np.ones_like(X)])
    called = bridge.call_tf(mean)
    np.testing.assert_allclose(jax.vmap(called)(batch), [3, 13 / 3, 1], rtol=1e-6)
    gradients = jax.jit(jax.vmap(jax.grad(called)))(batch)
    np.testing.assert_allclose(gradients[2], np.full(6, 1 / 6), rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(called, (X,), (X,)), [3, 3], rtol=1e-6)


def test_the_drop_in_computes_them():
    np.testing.assert_allclose(jax.jit(jax2tf.call_tf(mean))(X), 3, rtol=1e-6)


@pytest.mark.parametrize("name", MISREAD)
def test_what_xla_computes_of_the_bound_is_refused(name):
    with pytest.raises(StructureError, match=r"greatest possible one.* compiled=False"):
        jax.jit(bridge.call_tf(MISREAD[name]))(X)


@pytest.mark.parametrize("take", [weighted, lambda x: tf.reduce_sum(tf.gather(x, [0, 3]))])
def test_the_gradient_of_joined_arrays_is_refused(take):
    called = bridge.call_tf(lambda x: take(tf.concat([positive(x), negative(x)], 0)))
    assert np.isfinite(called(X))
    with pytest.raises(StructureError, match=r"of ConcatV2 .*greatest possible one"):
        jax.grad(called)(X)


def test_tensorflow_does_not_run_what_is_exported_with_them(tmp_path):
    called = bridge.call_tf(mean)
    for write in (
        lambda f: bridge.convert(f)(X),
        lambda f: bridge.save(f, tmp_path / "m", args=(SPEC,)),
    ):
        with pytest.raises(VersionError, match=r"size that depends on data.* graph=True"):
            write(called)
    assert not (tmp_path / "m").exists()
    kept = bridge.call_tf(mean, graph=True, variables="constant")
    np.testing.assert_allclose(bridge.convert(kept, polymorphic_shapes="b")(X), 3, rtol=1e-6)


def test_they_are_refined_with_nothing_else():
    """A function for several platforms beside it, whose sizes are known."""
    other = bridge.call_tf(lambda x: tf.reverse(x, [0]))
    both = jax.jit(lambda x: bridge.call_tf(mean)(x) + jnp.sum(other(x)))
    np.testing.assert_allclose(both(X), 3 + X.sum(), rtol=1e-6)
