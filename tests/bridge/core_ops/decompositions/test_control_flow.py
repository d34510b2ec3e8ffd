"""Loops and branches over pairs: what they carry, and what they see from outside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from tests.bridge.core_ops.decompositions.decomposing import check, contents, decomposed

Z = np.array([1 + 2j, -3j, 0.5], np.complex64)
BY = [COMPLEX_AS_PAIRS]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_branches_beyond_the_last(index):
    def function(index, z):
        branches = [lambda z: z + 1j, lambda z: z * z, lambda z: z.conj()]
        return lax.switch(index, branches, z), lax.cond(index > 0, jnp.exp, jnp.sin, z)

    check(function, np.int32(index), Z, by=BY)


def test_loops_of_values_that_change_places():
    def function(a, n):
        state = (a, a * 2, a[::-1])
        return lax.while_loop(
            lambda v: jnp.abs(v[0][0]) < n, lambda v: (v[1], v[2], v[0] * (1 + 1j)), state
        )

    check(function, Z, np.float32(9), by=BY)


def test_scans_see_values_from_outside():
    def function(z):
        return lax.scan(lambda c, x: (c * z[0] + x, c), jnp.complex64(0), z)

    check(function, Z, by=BY)


def test_what_a_loop_passes_on_is_not_carried():
    """The array `x` is seen from outside: the loop carries its number and one array."""

    def function(z, x):
        return lax.fori_loop(0, 3, lambda _, v: (v[0] * v[1], v[1]), (x, x)), z * 1j

    made = decomposed(function, [Z, np.ones(3, np.float32)], COMPLEX_AS_PAIRS)
    assert "stablehlo.while" in contents(made.call)[0]
    check(function, Z, np.float32([1, 2, 3]), by=BY)


def test_branches_of_constants():
    check(lambda z: jax.lax.cond(True, lambda: z * 1j, lambda: z), Z, by=BY)
