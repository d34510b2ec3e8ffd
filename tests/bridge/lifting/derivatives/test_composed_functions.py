"""Functions whose derivative their operations do not say: lifted, it is that of JAX's function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
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


_AT_ONE_PLACE = {
    "bessel_i0e": (2.5, 3.0, 30.0),
    "bessel_i1e": (2.5, 0.0, 30.0),
    "digamma": (2.5, 3.0, 30.0),
    "erf_inv": (0.5, 0.0, -0.75),
    "erfc": (-2.5, 0.0, 30.0),
    "lgamma": (2.5, 3.0, 30.0),
}


def _at_one_place(name, x):
    """Return calls from one line that are lowered to other operations each."""
    half = jnp.float32(0.5)
    several = (x, half, x.astype(jnp.float16), half, x[None], x[0], x.astype(jnp.bfloat16), x * 0.5)
    called = [getattr(lax, name)(each) for each in several]
    return sum(each.astype(x.dtype).sum() for each in called)


@pytest.mark.parametrize("size", ["3", "b"])
@pytest.mark.parametrize("name", _AT_ONE_PLACE)
def test_calls_from_one_place_have_their_derivatives(name, size):
    x = jnp.array(_AT_ONE_PLACE[name], jnp.float32)
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(size), x.dtype)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: _at_one_place(name, x)))(spec))
    found, expected = (jax.jit(jax.grad(f))(x) for f in (lifted, lambda x: _at_one_place(name, x)))
    np.testing.assert_allclose(found, expected, rtol=2e-3)  # those of bfloat16 are in the sum


def _powers(x, n):
    """Return powers whose exponents are integers that a call has, an array of them or in a loop."""
    several = x[:, None] ** jnp.arange(4, dtype=n.dtype)
    looped = lax.fori_loop(0, 3, lambda i, total: total + x**i, jnp.zeros_like(x))
    return several.sum() + looped.sum() + (x[None] ** n[:, None]).sum() + (x ** n[1]).sum()


@pytest.mark.parametrize(
    ("dtype", "exponents", "size"),
    [("float32", "int32", "b"), ("bfloat16", "uint8", "2"), ("complex64", "int8", "2")],
)
def test_powers_of_integers_have_a_derivative_at_zero(dtype, exponents, size):
    x, n = jnp.array([0, 2], dtype), jnp.array([2, 0, 1], exponents)
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(size), dtype)
    lifted = bridge.to_jax(export.export(jax.jit(_powers))(spec, n))
    np.testing.assert_allclose(*(np.asarray(f(x, n), np.complex64) for f in (lifted, _powers)))
    is_complex = dtype == "complex64"
    derivatives = [
        lambda f: jax.grad(f, holomorphic=is_complex)(x, n),
        lambda f: jax.jvp(lambda x: f(x, n), (x,), (jnp.ones_like(x),))[1],
        lambda f: jax.jvp(jax.grad(lambda x: f(x, n), holomorphic=is_complex), (x,), (x,))[1],
    ]
    for derivative in derivatives:  # the second one is NaN at 0 in JAX, too
        found, expected = (np.asarray(derivative(f), np.complex64) for f in (lifted, _powers))
        assert np.isfinite(expected).all() or derivative is derivatives[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "bfloat16" else 1e-5)


def test_a_file_without_gradients_has_those_in_a_tape(tmp_path):
    """Its derivatives are those of the lifted function, which `save` makes of an `Exported`."""

    def function(x):
        inverse = [lax.erf_inv(each) for each in (x, jnp.float32(0.3), x.astype(jnp.float16))]
        return sum(each.astype(x.dtype).sum() for each in inverse) + _powers(x, jnp.arange(3))

    x = np.array([0.0, 0.5], np.float32)
    exported = export.export(jax.jit(function))(x)
    alone = export.deserialize(exported.serialize())
    loaded = tf.saved_model.load(bridge.save(alone, tmp_path / "m").path)
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        (result,) = loaded.signatures["serving_default"](x=variable).values()
    np.testing.assert_allclose(tape.gradient(result, variable), jax.grad(function)(x), rtol=1e-3)
    forward = bridge.load(tmp_path / "m")
    tangent = jax.jvp(forward, (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(tangent, jax.grad(function)(x).sum(), rtol=1e-3)


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
