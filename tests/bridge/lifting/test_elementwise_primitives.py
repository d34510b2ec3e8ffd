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


@pytest.mark.parametrize("function", [jnp.logaddexp, jnp.logaddexp2])
def test_choices_by_the_order_of_complex_numbers_have_derivatives(function):
    """JAX has no derivative of `lax.max` of complex numbers, which is lowered to such a choice."""
    x = jnp.array([1 + 2j, 3 - 1j, 3 + 1j, 2j], "complex64")
    y = x[::-1] * 0.5 + 1
    lifted = bridge.to_jax(export.export(jax.jit(function))(x, y))
    np.testing.assert_array_equal(lifted(x, y), jax.jit(function)(x, y))
    for one, other in zip(
        jax.jvp(lifted, (x, y), (y, x)), jax.jvp(function, (x, y), (y, x)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-6)
    pulled = (jax.vjp(f, x, y)[1](x) for f in (lifted, function))
    for one, other in zip(*pulled, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6)
