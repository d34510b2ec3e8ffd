"""Functions that were exported for several platforms, lifted on one of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from tests.matrix.case import floats

PLATFORMS = ["cpu", "cuda", "tpu"]
X = floats(3, 4)
SYMMETRIC = np.diag(np.float32([1, 2, 3, 4])) + 1


def _ranks(x):
    return jax.scipy.stats.rankdata(x, axis=1)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (jnp.linalg.eigvalsh, SYMMETRIC),
        (lambda x: jnp.linalg.svd(x, compute_uv=False), X),
        (_ranks, X),
        (lambda x: lax.cumsum(x, axis=1), X),
    ],
    ids=["eigh", "svd", "ranks", "cumsum"],
)
def test_values(function, x, tmp_path):
    """Also in a batch, which is lowered for another platform without its devices."""
    bridge.save(function, tmp_path / "m", args=(jax.ShapeDtypeStruct(x.shape, x.dtype),))
    lifted = bridge.to_jax(tmp_path / "m")
    np.testing.assert_allclose(jax.jit(lifted)(x), function(x), rtol=1e-5, atol=1e-5)
    batched = jax.jit(jax.vmap(bridge.load(tmp_path / "m")))
    text = batched.trace(np.stack([x, x])).lower(lowering_platforms=("cuda",)).as_text()
    assert "func.func public @main" in text
