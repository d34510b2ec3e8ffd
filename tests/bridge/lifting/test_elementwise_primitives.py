"""Derivatives of elementwise operations, lifted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64"])
def test_bits_of_the_same_type_have_no_derivative(dtype):
    def bits(x):
        return lax.bitcast_convert_type(x, dtype) * x

    x = jnp.array([2.0, 3.0], dtype)
    lifted = bridge.to_jax(export.export(jax.jit(bits))(x))
    np.testing.assert_array_equal(lifted(x), x * x)
    np.testing.assert_array_equal(jax.jvp(lifted, (x,), (x,))[1], jax.jvp(bits, (x,), (x,))[1])
