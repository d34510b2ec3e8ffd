"""Tridiagonal matrices in `jax.lax`: solving with them, and reducing Hermitian matrices to them.

Every function here is of one matrix; `jax.vmap` makes it one of a batch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xla_call_module.linalg.factorizations import reflector
from xla_call_module.linalg.matrices import hermitian_of_lower, info_of_failures, item, magnitude


def solve(
    below: jax.Array, diagonal: jax.Array, above: jax.Array, right: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return LAPACK's `gtsv`: the solution by elimination with row exchanges, and `info`."""
    order = diagonal.shape[0]
    if order == 0:
        return right, jnp.int32(0)
    zero = jnp.zeros_like(diagonal[:1])
    above = jnp.concatenate([above[:-1], zero])

    def eliminate(carry: tuple[jax.Array, ...], row: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        """Rows of three elements: the pending one begins where the next one does."""
        first, second, known = carry
        left, middle, outer, b = row
        swap = magnitude(left) > magnitude(first)
        pairs = ((left, first), (middle, second), (outer, zero[0]), (b, known))
        pivot, p1, p2, pb = (jnp.where(swap, new, old) for new, old in pairs)
        other, o1, o2, ob = (jnp.where(swap, old, new) for new, old in pairs)
        factor = other / jnp.where(pivot == 0, 1, pivot)
        return (o1 - factor * p1, o2 - factor * p2, ob - factor * pb), (pivot, p1, p2, pb)

    start = (diagonal[0], above[0], right[0])
    rows = (below[1:], diagonal[1:], above[1:], right[1:])
    last, upper = lax.scan(eliminate, start, rows)
    pivots = jnp.concatenate([upper[0], last[0][None]])

    def substitute(carry: tuple[jax.Array, ...], row: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        next_, after = carry
        pivot, p1, p2, pb = row
        solution = (pb - p1 * next_ - p2 * after) / pivot
        return (solution, next_), solution

    end = last[2] / last[0]
    _, rest = lax.scan(substitute, (end, jnp.zeros_like(end)), upper, reverse=True)
    return jnp.concatenate([rest, end[None]]), info_of_failures(pivots == 0)


def reduce_hermitian(
    matrix: jax.Array, *, lower: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `sytrd`: reflectors packed beside a tridiagonal, its diagonals, and the taus.

    With `lower` only the lower triangle is read and reflectors are packed below the subdiagonal,
    else above the superdiagonal.
    """
    if not lower:
        # Reversing rows and columns exchanges the triangles, and the order of the reflectors.
        packed, diagonal, off, taus = reduce_hermitian(matrix[::-1, ::-1], lower=True)
        return packed[::-1, ::-1], diagonal[::-1], off[::-1], taus[::-1]
    order = matrix.shape[0]
    rows = np.arange(order)

    def reflect(k: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        whole, packed, off, taus = carry
        vector, tau, beta = reflector(item(whole, k, 1), k + 1)
        # LAPACK's H is I - tau v v^H, and the matrix becomes H^H A H.
        product = tau * (whole @ vector)
        product -= tau.conj() * (vector.conj() @ product) / 2 * vector
        whole -= vector[:, None] * product.conj() + product[:, None] * vector.conj()
        stored = jnp.where(rows > k + 1, vector, jnp.where(rows == k + 1, beta, 0))
        packed = jnp.where(rows == k, stored[:, None], packed)
        here = rows[: order - 1] == k
        return whole, packed, jnp.where(here, beta.real, off), jnp.where(here, tau, taus)

    real = jnp.zeros(order - 1, matrix.real.dtype)
    taus = jnp.zeros(order - 1, matrix.dtype)
    state = (hermitian_of_lower(matrix), jnp.zeros_like(matrix), real, taus)
    whole, packed, off, taus = lax.fori_loop(0, order - 1, reflect, state)
    diagonal = jnp.diagonal(whole).real
    packed = jnp.where(rows[:, None] > rows, packed, matrix)
    packed = jnp.where(np.eye(order, dtype=bool), diagonal.astype(matrix.dtype), packed)
    return packed, diagonal, off, taus
