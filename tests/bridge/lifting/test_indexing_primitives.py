"""Slices at computed places, within an array and beyond it, and what is combined there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge

X = np.arange(1, 9, dtype=np.float32)
BITS = np.array([True, False, True, True, False, False, True, False])
PLACES = np.array([6, 2, 2, 9, -1, 0], np.int32)  # some are beyond, and one is there twice
NEW = np.array([1, 0, 1, 1, 0, 0], bool)
FUNCTIONS = {
    "taken": lambda x, bits, at: (
        jnp.take(x, at, mode="clip"),
        jnp.take(x.reshape(4, 2), at, axis=0, mode="clip"),
        lax.dynamic_slice(x, (at[3],), (3,)),
        lax.dynamic_update_slice(x, x[:3], (at[3],)),
    ),
    "numbers": lambda x, bits, at: [
        getattr(x.at[at], how)(x[:6] * 3, mode="drop")
        for how in ("add", "subtract", "multiply", "min", "max")
    ],
    "each place once": lambda x, bits, at: (
        x.at[at[:2]].set(x[3:5], unique_indices=True),
        x.at[at[:2]].subtract(x[3:5], unique_indices=True),
        x.at[at[:2]].apply(jnp.sin),
    ),
    "truth values": lambda x, bits, at: [
        getattr(bits.at[at], how)(NEW, mode="drop") for how in ("min", "max")
    ],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_read_and_written_is_that_of_jax(name):
    function = jax.jit(FUNCTIONS[name])
    lifted = jax.jit(bridge.to_jax(export.export(function)(X, BITS, PLACES)))
    found, wanted = lifted(X, BITS, PLACES), function(X, BITS, PLACES)
    jax.tree.map(np.testing.assert_array_equal, list(found), list(wanted))
