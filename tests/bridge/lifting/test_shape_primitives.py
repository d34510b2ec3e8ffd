"""Arrays in other shapes and orders, whose dimensions all have sizes of their own."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

import bridge

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def _function(x):
    return (
        lax.pad(x, jnp.float32(-1), [(1, 2, 0), (0, 3, 1), (2, -1, 2)]),
        lax.transpose(x, (2, 0, 1)),
        lax.rev(x, (0, 2)),
        lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 2, 3)),
        lax.concatenate([x, x * 2], 1),
        lax.broadcast_in_dim(x[0], (3, 5, 4), (0, 2)),
        lax.broadcast(x[0, 0], (2, 3)),
        lax.reshape(x, (4, 6)),
        lax.broadcasted_iota(np.int32, (2, 3), 1),
        lax.squeeze(x[:1], (0,)),
    )


def test_each_is_that_of_jax():
    function = jax.jit(_function)
    lifted = jax.jit(bridge.to_jax(export.export(function)(X)))
    jax.tree.map(np.testing.assert_array_equal, list(lifted(X)), list(function(X)))
