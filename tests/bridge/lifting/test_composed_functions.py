"""Functions whose derivative their operations do not say: lifted, it is that of JAX's function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge

_INPUTS = (-1000.0, 500.0, -0.9, -0.5, 0.0, 0.3, 0.7, 1.5, 2.0, 5.0)


def _thrice(x):
    for _ in range(3):
        x = lax.erfc(x)
    return x


FUNCTIONS = {
    "acosh": lax.acosh,
    "asin": lambda x: lax.asin(jnp.tanh(x / 9)),
    "bessel_i1e": lax.bessel_i1e,
    "bfloat16": lambda x: lax.erfc(x.astype(jnp.bfloat16)).astype(x.dtype),
    "digamma": lax.digamma,
    "hypot": lambda x: jnp.hypot(x + 0.1, 2 * x),
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "erfc three times": _thrice,
    "erfc, inner one first": lambda x: lax.erfc(lax.erfc(x)),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "lgamma": lax.lgamma,
    "log_sigmoid": jax.nn.log_sigmoid,
    "logaddexp": lambda x: jnp.logaddexp(x, jnp.ones_like(x)),
    "logsumexp": lambda x: jax.nn.logsumexp(x) * x,
    "polygamma": lambda x: lax.polygamma(jnp.ones_like(x), x),
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sinc": jnp.sinc,
    "softplus": jax.nn.softplus,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_the_function(name):
    function = FUNCTIONS[name]
    x = jnp.array(_INPUTS)
    exported = export.export(jax.jit(function))(x)
    lifted = bridge.to_jax(exported)
    np.testing.assert_array_equal(lifted(x), jax.jit(exported.call)(x))
    for transform in (jax.grad, jax.jacfwd):
        derivatives = [jax.jit(transform(lambda x, f=f: f(x).sum()))(x) for f in (lifted, function)]
        np.testing.assert_allclose(*derivatives, rtol=2e-5)
    np.testing.assert_allclose(jax.vmap(lifted)(x[None]), function(x)[None], rtol=2e-6)


def test_a_name_alone_says_nothing():
    @jax.jit
    def relu(x):
        return jnp.maximum(x, 0) * 3

    @jax.jit
    def erfc(x):
        return jnp.tanh(x) + 1

    def function(x):
        with jax.named_scope("lgamma"):
            return relu(x) + erfc(x)

    x = jnp.array([0.0, 0.5, -1.0])
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    gradients = [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (lifted, function)]
    np.testing.assert_allclose(*gradients)


@pytest.mark.parametrize("exponent", [-2, -3, -5, -8])
def test_negative_powers_of_small_floats(exponent):
    """The derivative of their quotients would overflow."""

    def function(x):
        return lax.integer_pow(x, exponent)

    x = jnp.array([0.1, 30.0, -7.0, 2.0], jnp.float16)
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    np.testing.assert_array_equal(lifted(x), jax.jit(function)(x))
    gradients = [jax.grad(lambda x, f=f: f(x).sum())(x) for f in (lifted, function)]
    np.testing.assert_array_equal(*gradients)


def test_products_in_another_order_stay():
    def function(x):
        return 1 / (((x * x) * x) * x)

    x = jnp.array([0.37, 1.1, -7.3])
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    assert "integer_pow" not in str(jax.make_jaxpr(lifted)(x))


def test_what_looks_like_another_function_is_none():
    """The sum of two numbers, but for NaN: the branches of `logaddexp` the other way round."""

    def function(x, y):
        delta = x - y
        usual = jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(delta)))
        return lax.select(lax.eq(delta, delta), x + y, usual)

    x, y = jnp.array([0.5, -1.0]), jnp.array([0.25, 2.0])
    lifted = bridge.to_jax(export.export(jax.jit(function))(x, y))
    np.testing.assert_array_equal(lifted(x, y), x + y)
