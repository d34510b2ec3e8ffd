"""Triangular matrices in `jax.lax`: inverses of diagonal blocks, and solves that are built on them.

Every function here is of one matrix; `jax.vmap` makes it one of a batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xla_call_module.linalg.matrices import block_size, pad_to_blocks


def invert_lower(triangle: jax.Array) -> jax.Array:
    """Return the inverse of lower triangular matrices `[..., s, s]`, with s a power of two.

    With X the inverse of the diagonal blocks of order h, and S the blocks below them within the
    diagonal blocks of order 2h, X - X S X is the inverse of the latter. What is above the diagonal
    is not read.
    """
    order = triangle.shape[-1]
    index = np.arange(order)
    diagonal = jnp.diagonal(triangle, axis1=-2, axis2=-1)
    inverse = jnp.where(np.eye(order, dtype=bool), (1 / diagonal)[..., None], 0)
    half = 1
    while half < order:
        same = index[:, None] // (2 * half) == index // (2 * half)
        below = same & (index[:, None] // half > index // half)
        inverse -= inverse @ jnp.where(below, triangle, 0) @ inverse
        half *= 2
    return inverse


def solve_triangular(
    triangle: jax.Array,
    right: jax.Array,
    *,
    left_side: bool,
    lower: bool,
    transpose: bool,
    conjugate: bool,
    unit_diagonal: bool,
) -> jax.Array:
    """Return the X of `op(T) X = B` or `X op(T) = B`, as `lax.linalg.triangular_solve` does."""
    if conjugate:
        triangle = triangle.conj()
    if not left_side:
        right, transpose = right.T, not transpose
    if transpose:
        triangle, lower = triangle.T, not lower
    if not lower:  # reversing rows and columns makes it lower
        triangle, right = triangle[::-1, ::-1], right[::-1]
    solution = solve_lower(triangle, right, unit_diagonal=unit_diagonal)
    if not lower:
        solution = solution[::-1]
    return solution if left_side else solution.T


def solve_lower(triangle: jax.Array, right: jax.Array, *, unit_diagonal: bool) -> jax.Array:
    """Return the X of `T X = B` with T lower triangular; what is above its diagonal is not read.

    Rows are solved a block at a time. Multiplying by the inverse of a diagonal block loses
    accuracy where that block is ill-conditioned; one step of refinement against the block itself
    brings it back to that of substitution (Higham, Accuracy and Stability, 2002, 8.4 and 12.2).
    """
    order, columns = right.shape
    if order == 0 or columns == 0:
        return right
    size = block_size(order)
    triangle = jnp.where(np.tri(order, dtype=bool), triangle, 0)
    padded = pad_to_blocks(triangle, size, size)
    count = padded.shape[0] // size
    is_one = np.arange(count * size) >= (0 if unit_diagonal else order)
    padded = jnp.where(np.diag(is_one), 1, padded)
    blocks = padded.reshape(count, size, count, size)
    diagonal = jnp.stack([blocks[index, :, index] for index in range(count)])
    inverses = invert_lower(diagonal)
    rest = pad_to_blocks(right, size, 1)
    if count == 1:
        return _solve_block(diagonal[0], inverses[0], rest)[:order]

    def solve_rows(index: jax.Array, solution: jax.Array) -> jax.Array:
        start = index * size
        rows = lax.dynamic_slice_in_dim(padded, start, size)
        # The unknowns that are not solved for yet are zero.
        known = lax.dynamic_slice_in_dim(rest, start, size) - rows @ solution
        block = _solve_block(diagonal[index], inverses[index], known)
        return lax.dynamic_update_slice_in_dim(solution, block, start, 0)

    solution: jax.Array = lax.fori_loop(0, count, solve_rows, jnp.zeros_like(rest))
    return solution[:order]


def _solve_block(triangle: jax.Array, inverse: jax.Array, right: jax.Array) -> jax.Array:
    solution = inverse @ right
    return solution + inverse @ (right - triangle @ solution)
