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
