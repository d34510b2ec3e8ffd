"""The cotangent, and the module, that a converted function takes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge


@pytest.mark.parametrize("in_graph", [False, True])
def test_each_result_has_its_own_cotangent(in_graph):
    """Some have none: those of integers, and those that nothing follows from."""

    def function(x, y):
        return x * 2, jnp.int32(7), x * y, y * 5, jnp.int8(1), y + x

    converted = bridge.convert(function)
    x, y = tf.Variable(3.0), tf.Variable(4.0)

    def gradients():
        with tf.GradientTape() as tape:
            results = converted(x, y)
            total = 10.0 * results[0] + 100.0 * results[2] + 1000.0 * results[5]
        return tape.gradient(total, [x, y])

    found = (tf.function(gradients) if in_graph else gradients)()
    np.testing.assert_array_equal(found, [10 * 2 + 100 * 4 + 1000, 100 * 3 + 1000])


def test_tensors_of_other_dtypes_have_a_module_of_their_own():
    converted = bridge.convert(lambda x: x + 1)
    for dtype in (tf.float32, tf.int32, tf.float16, tf.uint8, tf.float32):
        result = converted(tf.constant([1, 2], dtype))
        assert (result.dtype, result.numpy().tolist()) == (dtype, [2, 3])
