"""Cholesky, LU and QR in `jax.lax`, blocked, with the results of LAPACK's routines.

Every function here is of one matrix; `jax.vmap` makes it one of a batch. The loops are over blocks
of columns and over the columns of a block, with shapes that do not change, so that the program is
as small for a large matrix as for a small one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xla_call_module.linalg.matrices import (
    block_size,
    hermitian_of_lower,
    info_of_failures,
    item,
    magnitude,
    pad_to_blocks,
    scale_of,
)
from xla_call_module.linalg.triangular import invert_lower


def cholesky(matrix: jax.Array, *, lower: bool) -> tuple[jax.Array, jax.Array]:
    """Return LAPACK's `potrf`: the factor, zero in the other triangle, and `info`.

    `info` is the order of the first leading minor that is not positive definite, or 0.
    """
    order = matrix.shape[0]
    if order == 0:
        return matrix, jnp.int32(0)
    if not lower:
        matrix = matrix.T.conj()
    size = block_size(order)
    padded = pad_to_blocks(matrix, size, size)
    rows = np.arange(padded.shape[0])
    padded = jnp.where(np.diag(rows >= order), 1, padded)

    def factor_columns(index: jax.Array, factor: jax.Array) -> jax.Array:
        start = index * size
        done = lax.dynamic_slice_in_dim(factor, start, size)
        panel = lax.dynamic_slice_in_dim(padded, start, size, 1) - factor @ done.T.conj()
        block, inverse = _cholesky_block(lax.dynamic_slice_in_dim(panel, start, size))
        below = panel @ inverse.T.conj()
        below += (panel - below @ block.T.conj()) @ inverse.T.conj()
        below = jnp.where((rows >= start + size)[:, None], below, 0)
        panel = lax.dynamic_update_slice_in_dim(below, block, start, 0)
        return lax.dynamic_update_slice_in_dim(factor, panel, start, 1)

    count = padded.shape[0] // size
    factor = lax.fori_loop(0, count, factor_columns, jnp.zeros_like(padded))[:order, :order]
    info = info_of_failures(~(jnp.diagonal(factor).real > 0))
    return factor if lower else factor.T.conj(), info


def _cholesky_block(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the factor of one diagonal block, and the factor's inverse."""
    size = block.shape[0]
    rows = np.arange(size)[:, None]

    def eliminate(k: jax.Array, state: jax.Array) -> jax.Array:
        row = item(state, k)
        pivot = item(row, k).real
        row = row / jnp.sqrt(pivot).astype(row.dtype)
        column = row.conj()[:, None]
        return jnp.where(rows == k, row, jnp.where(rows > k, state - column * row, state))

    upper = lax.fori_loop(0, size, eliminate, hermitian_of_lower(block))
    factor = jnp.where(np.tri(size, dtype=bool), upper.T.conj(), 0)
    return factor, invert_lower(factor)


def lu(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `getrf`: L and U packed, the row swaps counted from 1, and `info`.

    `info` is the index, from 1, of the first pivot that is exactly zero, or 0.
    """
    height, width = matrix.shape
    count = min(height, width)
    size = block_size(count)
    state = pad_to_blocks(matrix, size, size)
    if count == 0:
        return matrix, jnp.zeros(0, jnp.int32), jnp.int32(0)
    rows, columns = np.arange(state.shape[0]), np.arange(state.shape[1])
    swaps = jnp.zeros(-(-count // size) * size, jnp.int32)

    def factor_columns(
        index: jax.Array, carry: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        state, swaps = carry
        start = index * size
        panel = lax.dynamic_slice_in_dim(state, start, size, 1)
        panel, order, here = _lu_panel(panel, start, height, count)
        state = lax.dynamic_update_slice_in_dim(state[order], panel, start, 1)
        right = lax.dynamic_slice_in_dim(state, start, size)
        block = lax.dynamic_slice_in_dim(panel, start, size)
        block = jnp.where(np.tri(size, k=-1, dtype=bool), block, 0) + np.eye(
            size, dtype=block.dtype
        )
        inverse = invert_lower(block)
        upper = inverse @ right
        upper += inverse @ (right - block @ upper)
        upper = jnp.where(columns >= start + size, upper, 0)
        below = jnp.where((rows >= start + size)[:, None], panel, 0)
        state = state - below @ upper
        upper = jnp.where(columns >= start + size, upper, right)
        state = lax.dynamic_update_slice_in_dim(state, upper, start, 0)
        return state, lax.dynamic_update_slice_in_dim(swaps, here, start, 0)

    blocks = swaps.shape[0] // size
    state, swaps = lax.fori_loop(0, blocks, factor_columns, (state, swaps))
    state = state[:height, :width]
    return state, swaps[:count] + 1, info_of_failures(jnp.diagonal(state)[:count] == 0)


def _lu_panel(
    panel: jax.Array, start: jax.Array, height: int, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the factored panel, the order of its rows, and the swaps that led to it."""
    length, size = panel.shape
    rows, columns = np.arange(length, dtype=np.int32), np.arange(size, dtype=np.int32)

    def eliminate(
        k: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        panel, order, swaps = carry
        here = start + k
        column = item(panel, k, 1)
        candidate = (rows >= here) & (rows < height)
        largest = jnp.argmax(jnp.where(candidate, magnitude(column), -1))
        there = jnp.where(here < count, largest, here).astype(jnp.int32)
        top, pivotal = item(panel, here), item(panel, there)
        pivot = item(pivotal, k)
        swapped = jnp.where((rows == here)[:, None], pivotal, panel)
        swapped = jnp.where((rows == there)[:, None] & (there != here), top, swapped)
        lower = jnp.where(rows == there, item(top, k), column)
        lower = lower / jnp.where(pivot == 0, 1, pivot)
        is_below = (rows > here)[:, None]
        update = jnp.where(columns > k, swapped - lower[:, None] * pivotal, swapped)
        update = jnp.where(columns == k, lower[:, None], update)
        panel = jnp.where(is_below, update, swapped)
        return panel, _exchange(order, here, there), jnp.where(columns == k, there, swaps)

    start_of_panel = (panel, jnp.asarray(rows), jnp.zeros_like(columns))
    factored: tuple[jax.Array, jax.Array, jax.Array]
    factored = lax.fori_loop(0, size, eliminate, start_of_panel)
    return factored


def _exchange(order: jax.Array, here: jax.Array, there: jax.Array) -> jax.Array:
    """Return a list of rows after the exchange of two."""
    rows = np.arange(order.shape[0], dtype=np.int32)
    first, second = item(order, here), item(order, there)
    return jnp.where(rows == here, second, jnp.where(rows == there, first, order))


def permutation(swaps: jax.Array, size: int) -> jax.Array:
    """Return the order of `size` rows after row i is exchanged with row `swaps[i]`, i ascending."""
    rows = jnp.arange(size, dtype=np.int32)
    if swaps.shape[0] == 0:  # which even a loop without steps may not index
        return rows

    def exchange(here: jax.Array, order: jax.Array) -> jax.Array:
        return _exchange(order, here, item(swaps, here))

    order: jax.Array = lax.fori_loop(0, swaps.shape[0], exchange, rows)
    return order


def householder_qr(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return LAPACK's `geqrf`: R with the reflectors packed below it, and their factors tau."""
    height, width = matrix.shape
    count = min(height, width)
    if count == 0:
        return matrix, jnp.zeros(0, matrix.dtype)
    size = block_size(count)
    state = pad_to_blocks(matrix, size, size)
    columns = np.arange(state.shape[1])
    taus = jnp.zeros(-(-count // size) * size, matrix.dtype)

    def factor_columns(
        index: jax.Array, carry: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        state, taus = carry
        start = index * size
        panel, here = _qr_panel(lax.dynamic_slice_in_dim(state, start, size, 1), start)
        vectors = _reflectors(panel, start)
        factor = _block_reflector(vectors, here)
        update = vectors @ (factor.T.conj() @ (vectors.T.conj() @ state))
        state = jnp.where(columns >= start + size, state - update, state)
        state = lax.dynamic_update_slice_in_dim(state, panel, start, 1)
        return state, lax.dynamic_update_slice_in_dim(taus, here, start, 0)

    blocks = taus.shape[0] // size
    state, taus = lax.fori_loop(0, blocks, factor_columns, (state, taus))
    return state[:height, :width], taus[:count]


def _qr_panel(panel: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the factored panel, whose first pivot is in row `start`, and its taus."""
    size = panel.shape[1]

    def reflect(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        panel, taus = carry
        panel, tau = _reflect_column(panel, k, start + k)
        return panel, jnp.where(np.arange(size) == k, tau, taus)

    factored: tuple[jax.Array, jax.Array]
    factored = lax.fori_loop(0, size, reflect, (panel, jnp.zeros(size, panel.dtype)))
    return factored


def _reflect_column(
    matrix: jax.Array, k: jax.Array, here: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return a matrix whose column k is zero below row `here`, and the tau of the reflection.

    The columns before k stay; in column k the vector of the reflector takes the place of zeros.
    """
    rows, columns = np.arange(matrix.shape[0]), np.arange(matrix.shape[1])
    column = item(matrix, k, 1)
    vector, tau, beta = reflector(column, here)
    update = matrix - vector[:, None] * (tau.conj() * (vector.conj() @ matrix))
    packed = jnp.where(rows == here, beta, jnp.where(rows > here, vector, column))
    reflected = jnp.where(columns > k, update, matrix)
    return jnp.where(columns == k, packed[:, None], reflected), tau


def reflector(column: jax.Array, here: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `larfg`: v (1 in row `here`, 0 above), tau and beta.

    `(I - conj(tau) v v^H)` makes the column zero below row `here`, where it leaves beta, a real
    number.
    """
    rows = np.arange(column.shape[0])
    alpha = item(column, here)
    tail = jnp.where(rows > here, column, 0)
    active = jnp.where(rows >= here, column, 0)
    # Squares of small numbers underflow, so the column is scaled by its largest element.
    scale = scale_of(active)
    norm = scale * jnp.sqrt(jnp.sum(jnp.square(jnp.abs(active / scale))))
    done = ~jnp.any(tail != 0) & (alpha.imag == 0)
    beta = jnp.where(done, alpha.real, jnp.where(alpha.real < 0, norm, -norm))
    safe = jnp.where(done, 1, beta)
    tau = jnp.where(done, 0, (safe - alpha) / safe).astype(column.dtype)
    vector = jnp.where(rows > here, column / jnp.where(done, 1, alpha - beta), 0)
    vector = jnp.where(rows == here, 1, vector)
    return vector, tau, beta.astype(column.dtype)


def pivoted_qr(matrix: jax.Array, fixed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `geqp3`: packed R and reflectors, the columns' order from 1, and the taus.

    Each step takes the column with the largest norm below the rows that are done. Columns whose
    entry of `fixed` is not zero come first.
    """
    height, width = matrix.shape
    count = min(height, width)
    rows, columns = np.arange(height), np.arange(width, dtype=np.int32)
    is_free = fixed == 0
    start = jnp.argsort(is_free, stable=True).astype(fixed.dtype)
    nr_fixed = width - jnp.sum(is_free)

    def reflect(k: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        packed, order, taus = carry
        rest = jnp.where((rows >= k)[:, None], packed, 0)
        scale = jnp.max(jnp.abs(rest))
        norms = jnp.sum(jnp.square(jnp.abs(rest / jnp.where(scale > 0, scale, 1))), axis=0)
        best = jnp.argmax(jnp.where(columns >= k, norms, -1)).astype(jnp.int32)
        there = jnp.where(k < nr_fixed, k, best)
        moved = jnp.where(columns == k, there, jnp.where(columns == there, k, columns))
        packed, tau = _reflect_column(packed[:, moved], k, k)
        return packed, order[moved], jnp.where(np.arange(count) == k, tau, taus)

    state = (matrix[:, start], start, jnp.zeros(count, matrix.dtype))
    packed, order, taus = lax.fori_loop(0, count, reflect, state)
    return packed, order + 1, taus


def _reflectors(panel: jax.Array, start: jax.Array) -> jax.Array:
    """Return the vectors of a packed panel whose first pivot is in row `start`."""
    offset = np.arange(panel.shape[0])[:, None] - np.arange(panel.shape[1])
    return jnp.where(offset > start, panel, jnp.where(offset == start, 1, 0)).astype(panel.dtype)


def _block_reflector(vectors: jax.Array, taus: jax.Array) -> jax.Array:
    """Return the T of `H_1 H_2 ... = I - V T V^H` (Puglisi, SIAM J. Sci. Comput. 13, 1992)."""
    size = vectors.shape[1]
    gram = jnp.where(np.tri(size, k=-1, dtype=bool), vectors.T.conj() @ vectors, 0)
    lower = gram.conj() * taus + np.eye(size, dtype=gram.dtype)
    return invert_lower(lower).T * taus


def householder_product(packed: jax.Array, taus: jax.Array) -> jax.Array:
    """Return LAPACK's `orgqr`: the first columns of the product of the reflectors."""
    identity = jnp.eye(packed.shape[0], packed.shape[1], dtype=packed.dtype)
    return multiply_by_q(packed, taus, identity, left=True, adjoint=False)


def multiply_by_q(
    packed: jax.Array, taus: jax.Array, other: jax.Array, *, left: bool, adjoint: bool
) -> jax.Array:
    """Return LAPACK's `ormqr`: Q C, Q^H C, C Q or C Q^H, with Q as `householder_qr` packs it."""
    if not left:
        adjoint_product = multiply_by_q(
            packed, taus, other.T.conj(), left=True, adjoint=not adjoint
        )
        return adjoint_product.T.conj()
    count = taus.shape[0]
    if count == 0 or other.shape[1] == 0:
        return other
    size = block_size(count)
    height = other.shape[0]
    packed = pad_to_blocks(packed[:, :count], size, size)
    taus = jnp.pad(taus, (0, -count % size))
    blocks = taus.shape[0] // size

    def apply(index: jax.Array, product: jax.Array) -> jax.Array:
        start = (index if adjoint else blocks - 1 - index) * size
        vectors = _reflectors(lax.dynamic_slice_in_dim(packed, start, size, 1), start)
        factor = _block_reflector(vectors, lax.dynamic_slice_in_dim(taus, start, size))
        factor = factor.T.conj() if adjoint else factor
        return product - vectors @ (factor @ (vectors.T.conj() @ product))

    product: jax.Array = lax.fori_loop(0, blocks, apply, pad_to_blocks(other, size, 1))
    return product[:height]
