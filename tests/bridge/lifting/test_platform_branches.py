"""Branches of platforms that look alike, and files for several platforms on one of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from tests.bridge.lifting.lifted import assert_same, lift
from tests.matrix.case import floats

X, Y = np.float32([3, -2, 5]), np.float32([2, 4, -1])
BRANCHES = {
    "another operand": (lambda x, y: x - y, lambda x, y: x - x),
    "operands in another order": (lambda x, y: x - y, lambda x, y: y - x),
    "another operation": (lambda x, y: jnp.maximum(x, y), lambda x, y: jnp.minimum(x, y)),
    "another number": (lambda x, y: x * 2 + y, lambda x, y: x * 3 + y),
    "another axis": (lambda x, y: jnp.flip(x) + y, lambda x, y: x + jnp.flip(y)),
}


@pytest.mark.parametrize("platforms", [["tpu", "cpu"], ["cpu", "tpu"]])
@pytest.mark.parametrize("name", BRANCHES)
def test_each_platform_has_its_own(name, platforms):
    here, there = BRANCHES[name]
    function = lambda x, y: lax.platform_dependent(x, y, cpu=here, tpu=there)  # noqa: E731
    assert_same(lift(function, X, Y, platforms=platforms)(X, Y), here(X, Y))


@pytest.mark.parametrize(
    "function",
    [lambda x: jax.scipy.stats.rankdata(x, axis=1), lambda x: lax.cumsum(x, axis=1)],
    ids=["ranks", "cumsum"],
)  # fmt: skip
def test_values(function, tmp_path):
    """Also in a batch, which is lowered for another platform without its devices."""
    x = floats(3, 4)
    bridge.save(function, tmp_path / "m", args=(jax.ShapeDtypeStruct(x.shape, x.dtype),))
    lifted = bridge.to_jax(tmp_path / "m")
    np.testing.assert_allclose(jax.jit(lifted)(x), function(x), rtol=1e-5, atol=1e-5)
    batched = jax.jit(jax.vmap(bridge.load(tmp_path / "m")))
    text = batched.trace(np.stack([x, x])).lower(lowering_platforms=("cuda",)).as_text()
    assert "func.func public @main" in text
