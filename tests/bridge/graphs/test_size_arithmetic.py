"""Dynamic sizes, as numbers that a program computes with."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check

X = np.arange(6, dtype=np.float32).reshape(3, 2)
BOARD = jnp.arange(30.0).reshape(5, 6)

_MATRICES = {
    "row": lambda b, t: jnp.array([[b, t]]),
    "column": lambda b, t: jnp.array([[b], [t]]),
    "both": lambda b, t: jnp.array([[b, 1], [t, 2]]),
    "transposed": lambda b, t: jnp.array([[b, t]]).T,
    "beside": lambda b, t: jnp.concatenate([jnp.array([[b], [t]])] * 2, axis=1),
    "sum": lambda b, t: jnp.array([[b], [t]]) + jnp.array([b, 5]),
    "element": lambda b, t: jnp.array([[b, 7], [t, 9]])[:, 0],
    "slice": lambda b, t: jnp.array([[b, 7], [t, 9]])[1:, :1],
    "repeated": lambda b, t: jnp.broadcast_to(jnp.array([[b], [t]]), (2, 3)),
    "float": lambda b, t: jnp.array([[b, t]]).astype("float32") * 2,
}
_VECTORS = {
    "written": lambda b, t: jnp.array([b, t]).at[0].set(3),
    "repeated": lambda b, t: jnp.full((3,), b)[1:] + t,
    "joined": lambda b, t: jnp.concatenate([jnp.full((3,), b), jnp.array([t])]),
    "reshaped": lambda b, t: jnp.full((6,), b).reshape(2, 3).T,
    "as an index": lambda b, t: BOARD[tuple(jnp.full((2,), t))],
    "as a start": lambda b, t: lax.dynamic_slice(BOARD, jnp.full((2,), t), (1, 2)),
    "as many": lambda b, t: jnp.full((b, t), b) + 1,
    "sorted": lambda b, t: jnp.sort(jnp.array([b, t])),
}


@pytest.mark.parametrize("name", _MATRICES)
def test_a_matrix_of_sizes(name):
    check(lambda x: _MATRICES[name](*x.shape), X, shapes=["b, t"])


@pytest.mark.parametrize("name", _VECTORS)
def test_a_vector_of_sizes(name):
    check(lambda x: _VECTORS[name](*x.shape), X, shapes=["b, t"])


@pytest.mark.parametrize(
    "function",
    [
        lambda b, t: jnp.array([b * 100]).astype("int8") // jnp.int8(3),
        lambda b, t: jnp.array([b * 100]).astype("uint8") > jnp.uint8(100),
        lambda b, t: jnp.array([b * 30000]).astype("int16") // jnp.int16(3),
        lambda b, t: jnp.maximum(jnp.uint32(t) - jnp.uint32(b), jnp.uint32(2)),
        lambda b, t: (jnp.uint32(t) - jnp.uint32(b)) // jnp.uint32(2),
        lambda b, t: jnp.uint32(t) - jnp.uint32(b) > jnp.uint32(2),
    ],
)
def test_what_is_beyond_its_dtype(function):
    """With 3 and 2 as sizes, so that the difference of the two is below 0."""
    check(lambda x: function(*x.shape), X, shapes=["b, t"])
