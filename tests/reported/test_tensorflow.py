"""Converted and called functions that were found in 2026 to compute something else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge import DtypeError, jax2tf

X = np.float32([0.3, -1.0, 2.0])


@pytest.mark.parametrize("in_graph", [False, True])
def test_results_of_which_some_have_no_cotangent(in_graph):
    converted = bridge.convert(lambda x, y: (x * 2, jnp.int32(7), x * y, y * 5, y + x, jnp.int8(1)))
    x, y = tf.Variable(3.0), tf.Variable(4.0)

    def gradients():
        with tf.GradientTape() as tape:
            results = converted(x, y)
            total = 10.0 * results[0] + 100.0 * results[2] + 1000.0 * results[4]
        return tape.gradient(total, [x, y])

    found = (tf.function(gradients) if in_graph else gradients)()
    np.testing.assert_array_equal(found, [10 * 2 + 100 * 4 + 1000, 100 * 3 + 1000])


def test_one_function_of_tensors_of_several_dtypes():
    converted = bridge.convert(lambda x: x + 1)
    for dtype in (tf.float32, tf.int32, tf.float16, tf.uint8, tf.float32):
        result = converted(tf.constant([1, 2], dtype))
        assert (result.dtype, result.numpy().tolist()) == (dtype, [2, 3])


def test_a_quotient_by_a_symbolic_size():
    """It ended the process where TensorFlow traced it, and XLA folded a division by zero."""
    halves = bridge.convert(lambda x: x.reshape(4, -1).sum(1), polymorphic_shapes="4*b")
    run = tf.function(halves, input_signature=[tf.TensorSpec([None])], autograph=False)
    np.testing.assert_array_equal(run(tf.ones(8)), [2, 2, 2, 2])


@pytest.mark.parametrize("begin", [lambda i: [i], lambda i: i[None] * 2 - i])
def test_gradients_of_a_slice_that_starts_at_an_argument(begin):
    called = bridge.call_tf(lambda x, i: tf.reduce_sum(tf.slice(x, begin(i), [2]) ** 2))
    x, start = np.arange(5, dtype=np.float32), np.int32(1)
    np.testing.assert_array_equal(jax.jit(jax.grad(called))(x, start), [0, 2, 4, 0, 0])
    gradients = jax.vmap(jax.grad(called), (None, 0))(x, np.int32([0, 3]))
    np.testing.assert_array_equal(gradients, [[0, 2, 0, 0, 0], [0, 0, 0, 6, 8]])


def test_a_hessian_of_a_slice_that_starts_at_a_size():
    called = bridge.call_tf(lambda x: tf.reduce_sum(tf.slice(x, tf.shape(x) - 2, [2]) ** 2))
    np.testing.assert_array_equal(jax.hessian(called)(np.float32([1, 2, 3])), np.diag([0, 2, 2]))


def test_a_gradient_that_takes_the_logarithm_of_a_cotangent():
    called = bridge.call_tf(lambda x: tf.math.cumulative_logsumexp(x, 0))
    tangent = np.float32([1.0, -2.0, 0.5])
    expected = jax.jvp(jax.lax.cumlogsumexp, (X,), (tangent,))[1]
    np.testing.assert_allclose(jax.jvp(called, (X,), (tangent,))[1], expected, rtol=1e-5)


def test_values_that_32_bits_do_not_hold():
    large = jax2tf.call_tf(lambda x: tf.cast(x, tf.int64) * 2**33)
    with pytest.raises(DtypeError, match="int64 with the value 8589934592, which int32"):
        large(np.int32([0, 1]))
    infinite = jax2tf.call_tf(lambda x: tf.cast(x, tf.float64) * 1e300)
    with pytest.raises(DtypeError, match="which float32 does not hold"):
        infinite(np.float32(1))
    assert int(jax2tf.call_tf(lambda x: tf.argmax(x))(X)) == 2


def test_sizes_of_what_is_sorted(tmp_path):
    """XLA sets them, too, to what they are; that is no size that depends on data."""
    x = np.float32([[3, 1, 2], [1, 3, 2], [2, 1, 3]])
    called = bridge.call_tf(lambda x: tf.sort(x, 0) + tf.math.top_k(x, 3)[0])
    bridge.save(called, tmp_path / "m", args="f32[3,3]")
    expected = np.sort(x, 0) + np.sort(x, 1)[:, ::-1]
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m")(x), expected)


def test_rolls_along_a_negative_axis_and_elements_of_no_segment():
    """`tf.vectorized_map`, by which elements were mapped, has others."""
    rolled = lambda x: tf.roll(x, 1, -1) + tf.math.unsorted_segment_sum(x, [0, -1], 2)[0]  # noqa: E731
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    found = jax.vmap(bridge.call_tf(rolled))(x)
    np.testing.assert_array_equal(found, [rolled(one) for one in x])
