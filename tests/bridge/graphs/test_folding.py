"""Operations of constants, which are computed when the model is made, as JAX computes them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations

N = np.array([-7, 7, -8, 8, 0, -1], np.int32)
D = np.array([2, -2, 3, -3, 5, 7], np.int32)
M = np.arange(24, dtype=np.float32).reshape(4, 6)
FUNCTIONS = {
    "quotients of integers": lambda: (lax.div(N, D), lax.rem(N, D)),
    "quotients of floats": lambda: (lax.div(M, M + 1), jnp.float32(1) / (M + 2)),
    "slices": lambda: (lax.slice(M, (1, 0), (4, 5), (2, 3)), lax.rev(M, (1,)), M[::-1, 2:5]),
    "rows": lambda: (jnp.take(M, np.array([3, 0]), 0), jnp.take(M, np.array([5, 0, 5]), 1)),
    "shapes": lambda: (lax.reshape(M, (3, 8)), lax.transpose(M, (1, 0)), lax.expand_dims(M, (1,))),
    "joined": lambda: (lax.concatenate([M, M + 1], 1), lax.broadcast_in_dim(N, (2, 6), (1,))),
    "comparisons": lambda: (N < D, N >= D, jnp.where(N > 0, N, D), jnp.maximum(N, D)),
    "rounding": lambda: (jnp.floor(M / 5), jnp.ceil(-M / 5), jnp.sign(N), jnp.abs(N)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_constants_are_computed_as_jax_does(name):
    def function(x):
        return [jnp.asarray(value, np.float32) + x for value in FUNCTIONS[name]()]

    model = check(function, np.float32(0.5), rtol=1e-6)
    # What repeats a number, or is a result as it is, stays a node.
    assert set(operations(model)) <= {"Add", "Expand", "Identity"}
