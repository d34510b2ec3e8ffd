"""TensorFlow's own conventions: complex gradients, and static shapes that Keras sees."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

COMPLEX = {
    "exp": (jnp.exp, tf.exp),
    "abs": (jnp.abs, tf.abs),
    "conj": (jnp.conj, tf.math.conj),
    "square": (lambda z: z * z, lambda z: z * z),
    "mixed": (lambda z: z * jnp.conj(z) * z, lambda z: z * tf.math.conj(z) * z),
    "fft": (jnp.fft.fft, tf.signal.fft),
}


@pytest.mark.parametrize("compiled", [None, False, True])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradients_are_those_of_native_operations(name, compiled):
    ours, native = COMPLEX[name]
    z = tf.constant([[1 + 2j, -0.5 + 0.1j, 0.3 - 1j]], tf.complex64)

    def gradient(function):
        def run(z):
            with tf.GradientTape() as tape:
                tape.watch(z)
                y = function(z)
                loss = tf.reduce_sum(y * tf.cast([1, 2, 3], y.dtype))
            return tape.gradient(loss, z)

        return run

    converted = gradient(bridge.convert(ours))
    if compiled is not None:
        converted = tf.function(converted, jit_compile=compiled)
    np.testing.assert_allclose(converted(z), gradient(native)(z), rtol=1e-5, atol=1e-5)


def test_shapes_reach_keras():
    import keras

    converted = bridge.convert(lambda x: jnp.tanh(x[:, :2]), polymorphic_shapes="b, _")
    inputs = keras.Input([3])
    outputs = keras.layers.Lambda(converted)(inputs)
    assert outputs.shape == (None, 2)
    x = np.linspace(-1, 1, 6).astype(np.float32).reshape(2, 3)
    predicted = keras.Model(inputs, outputs).predict(x, verbose=0)
    np.testing.assert_allclose(predicted, np.tanh(x[:, :2]), rtol=1e-5)
