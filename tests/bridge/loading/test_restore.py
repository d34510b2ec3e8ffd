"""The `Exported`s that a file's calls describe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge

pytestmark = pytest.mark.usefixtures("x64")


def _function(x):
    return jax.nn.gelu(x, approximate=False)


def test_passes_of_different_versions_of_stablehlo_are_joined(tmp_path):
    """From JAX 0.11 on the forward pass has what the version of the backward pass does not know."""
    x = jnp.linspace(-3.0, 3.0, 7)
    path = bridge.save(_function, tmp_path / "gelu", args=(x,), residuals=True).path
    loaded = bridge.load(path)
    expected, pull = jax.vjp(_function, x)
    np.testing.assert_allclose(loaded(x), expected, rtol=1e-14)
    np.testing.assert_allclose(jax.vjp(loaded, x)[1](x)[0], pull(x)[0], rtol=1e-13)


@jax.custom_vjp
def _cosine(x):
    return jnp.cos(x)


@jax.custom_vjp
def _sine(x):
    return jnp.sin(x)


# Each rule tells by a factor that it was taken, and not the operations of the order below.
_cosine.defvjp(lambda x: (jnp.cos(x), x), lambda x, g: (-7 * jnp.sin(x) * g,))
_sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (3 * _cosine(x) * g,))


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize(("order", "factors"), [(1, (3, 3)), (2, (3, 21))])
def test_the_rules_of_each_order_that_was_saved_are_there(tmp_path, order, factors, residuals):
    path = bridge.save(
        _sine, tmp_path / "m", args="f64[]", gradient_order=order, residuals=residuals
    ).path
    loaded = bridge.load(path)
    sources = [loaded.default.gradient_source(number) for number in (1, 2)]
    assert sources == ["saved"] * order + ["lifted"] * (2 - order)
    x = jnp.float64(0.5)
    first = jax.grad(loaded)
    np.testing.assert_allclose(first(x), factors[0] * jnp.cos(x), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(first)(x), -factors[1] * jnp.sin(x), rtol=1e-12)
    exported, count = loaded.default.exported, 0
    while exported.has_vjp():
        exported, count = exported.vjp(), count + 1
    assert count == order
