"""Branches of platforms that look alike, and are not the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge

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

    def function(x, y):
        return lax.platform_dependent(x, y, cpu=here, tpu=there)

    lifted = bridge.to_jax(export.export(jax.jit(function), platforms=platforms)(X, Y))
    np.testing.assert_array_equal(lifted(X, Y), here(X, Y))
