"""Eigenvalues and singular values in `jax.lax`.

Every function here is of one matrix; `jax.vmap` makes it one of a batch.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from xla_call_module.linalg.factorizations import (
    cholesky,
    householder_product,
    householder_qr,
    multiply_by_q,
)
from xla_call_module.linalg.matrices import info_of_finite, scale_of
from xla_call_module.linalg.triangular import solve_lower, solve_triangular
from xla_call_module.linalg.tridiagonals import reduce_hermitian

# The order of the blocks that are not torn any further, a power of two.
_LEAF = 16
# Jacobi's method needs about six sweeps; a matrix with NaNs would never be done.
_MAX_SWEEPS = 15

# The fields of a merge, each of one row of a tridiagonal: eigenvalue, weight, eigenvector.
_Row = tuple[jax.Array, jax.Array, jax.Array]


def eigh(matrix: jax.Array, *, lower: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `syevd`: eigenvectors in columns, eigenvalues ascending, and `info`.

    `info` is 1 where the matrix has elements that are not finite, or 0.
    """
    order = matrix.shape[0]
    if order == 0:
        return matrix, jnp.zeros(0, matrix.real.dtype), jnp.int32(0)
    if not lower:
        matrix = matrix.T.conj()
    matrix = jnp.where(np.tri(order, dtype=bool), matrix, 0)
    scale, info = scale_of(matrix), info_of_finite(matrix)
    if order == 1:
        return jnp.ones_like(matrix), jnp.diagonal(matrix).real, info
    packed, diagonal, off, taus = reduce_hermitian(matrix / scale, lower=True)
    values, vectors = tridiagonal_eigh(diagonal, off)
    vectors = vectors.astype(matrix.dtype)
    below = multiply_by_q(packed[1:, :-1], taus, vectors[1:], left=True, adjoint=False)
    return jnp.concatenate([vectors[:1], below]), values * scale, info


def tridiagonal_eigh(diagonal: jax.Array, off: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return eigenvalues, ascending, and eigenvectors in columns of a real symmetric tridiagonal.

    Cuppen's method down to small blocks, all merges of a level together (Gu and Eisenstat, SIAM J.
    Matrix Anal. Appl. 16, 1995).
    """
    order = diagonal.shape[0]
    size = 1 << (order - 1).bit_length()
    leaf = min(_LEAF, size)
    # What is added has eigenvalues above all others, to be cut off at the end.
    bound = jnp.max(jnp.abs(diagonal)) + 2 * jnp.max(jnp.abs(off), initial=0)
    diagonal = jnp.where(
        np.arange(size) < order, jnp.pad(diagonal, (0, size - order)), 2 * bound + 1
    )
    off = jnp.pad(off, (0, size - order))
    is_joint = np.arange(1, size) % leaf == 0
    weights = jnp.where(is_joint, jnp.abs(off), 0)
    torn = diagonal - jnp.pad(weights, (0, 1)) - jnp.pad(weights, (1, 0))
    inner = jnp.where(is_joint, 0, off)
    whole = jnp.diag(torn) + jnp.diag(inner, 1) + jnp.diag(inner, -1)
    blocks = whole.reshape(size // leaf, leaf, size // leaf, leaf)
    diagonal_blocks = jnp.stack([blocks[index, :, index] for index in range(size // leaf)])
    values, vectors = jax.vmap(_jacobi)(diagonal_blocks)
    half = leaf
    while half < size:
        pairs = size // (2 * half)
        values = values.reshape(pairs, 2, half)
        vectors = vectors.reshape(pairs, 2, half, half)
        values, vectors = jax.vmap(_merge)(values, vectors, off[half - 1 :: 2 * half])
        half *= 2
    ascending = jnp.argsort(values[0])[:order]
    return values[0][ascending], vectors[0][ascending, :order].T


def _jacobi(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return eigenvalues and, in rows, eigenvectors of a small real symmetric matrix.

    Its order is a power of two. Each step rotates all rows in pairs; after as many steps as there
    are partners everybody has met.
    """
    size = matrix.shape[0]
    identity = np.eye(size, dtype=matrix.dtype)
    if size == 1:
        return matrix[0], jnp.asarray(identity)
    partners = jnp.asarray(_tournament(size))
    index = np.arange(size)
    epsilon = float(np.finfo(matrix.dtype).eps)

    def rotate(step: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        matrix, vectors = state
        is_partner = index == partners[step][:, None]
        diagonal = jnp.diagonal(matrix)
        between = jnp.sum(jnp.where(is_partner, matrix, 0), axis=1)
        other = jnp.sum(jnp.where(is_partner, diagonal, 0), axis=1)
        ratio = (other - diagonal) / jnp.where(between == 0, 1, 2 * between)
        first = (ratio > 0) | ((ratio == 0) & (index < partners[step]))
        tangent = jnp.where(first, 1, -1) / (jnp.abs(ratio) + jnp.sqrt(1 + ratio * ratio))
        tangent = jnp.where(between == 0, 0, tangent).astype(matrix.dtype)
        cosine = 1 / jnp.sqrt(1 + tangent * tangent)
        turn = jnp.where(is_partner, (tangent * cosine)[:, None], identity * cosine)
        matrix = turn.T @ matrix @ turn
        return (matrix + matrix.T) / 2, turn.T @ vectors

    def is_unfinished(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        sweep, matrix, _ = state
        outside = jnp.max(jnp.abs(jnp.where(identity == 1, 0, matrix)))
        return (sweep < _MAX_SWEEPS) & (outside > epsilon / 8 * jnp.max(jnp.abs(matrix)))

    def sweep(
        state: tuple[jax.Array, jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        number, matrix, vectors = state
        matrix, vectors = lax.fori_loop(0, size - 1, rotate, (matrix, vectors))
        return number + 1, matrix, vectors

    start = (jnp.int32(0), matrix, jnp.asarray(identity))
    _, matrix, vectors = lax.while_loop(is_unfinished, sweep, start)
    return jnp.diagonal(matrix), vectors


def _tournament(size: int) -> npt.NDArray[np.int32]:
    """Return, in row r, whom each of an even number of players meets in round r."""
    partners = np.zeros((size - 1, size), np.int32)
    for turn in range(size - 1):
        seats = [0, *(1 + (turn + seat) % (size - 1) for seat in range(size - 1))]
        for one, two in zip(seats[: size // 2], seats[: size // 2 - 1 : -1], strict=True):
            partners[turn, one], partners[turn, two] = two, one
    return partners


def _merge(values: jax.Array, vectors: jax.Array, joint: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the eigenpairs of two torn halves and their joint; eigenvectors are in rows here."""
    half = values.shape[-1]
    zeros = jnp.zeros((half, half), vectors.dtype)
    rows = jnp.block([[vectors[0], zeros], [zeros, vectors[1]]])
    sign = jnp.where(joint < 0, -1, 1).astype(values.dtype)
    weights = jnp.concatenate([vectors[0][:, -1], sign * vectors[1][:, 0]]) / math.sqrt(2)
    strength = 2 * jnp.abs(joint)
    poles = values.reshape(-1)
    order = jnp.argsort(poles)
    poles, weights, rows = _deflate((poles[order], weights[order], rows[order]), strength)
    values, coefficients = _solve_secular(poles, weights, strength)
    return values, coefficients @ rows


def _deflate(rows: _Row, strength: jax.Array) -> _Row:
    """Return the same problem with a zero weight where an eigenvalue stays as it is.

    Those are the ones of which the weight is negligible, and, after a rotation, one of each two
    that are nearly equal (LAPACK's `laed2`). Poles come in ascending.
    """
    poles, weights, vectors = rows
    epsilon = float(np.finfo(poles.dtype).eps) / 2
    tolerance = 2 * epsilon * jnp.maximum(jnp.max(jnp.abs(poles)), jnp.max(jnp.abs(weights)))

    def visit(pending: _Row, row: _Row) -> tuple[_Row, _Row]:
        (p1, z1, v1), (p2, z2, v2) = pending, row
        tiny1, tiny2 = strength * jnp.abs(z1) <= tolerance, strength * jnp.abs(z2) <= tolerance
        norm = jnp.sqrt(z1 * z1 + z2 * z2)
        safe = jnp.where(norm > 0, norm, 1)
        c, s = z2 / safe, z1 / safe
        close = ~tiny1 & ~tiny2 & (jnp.abs((p2 - p1) * c * s) <= tolerance)
        keep = tiny2 & ~tiny1
        turned = (p1 * c * c + p2 * s * s, jnp.zeros_like(z1), c * v1 - s * v2)
        joined = (p1 * s * s + p2 * c * c, norm, s * v1 + c * v2)
        out = _choose(
            close,
            turned,
            _choose(keep, (p2, jnp.zeros_like(z2), v2), (p1, jnp.where(tiny1, 0, z1), v1)),
        )
        return _choose(close, joined, _choose(keep, pending, row)), out

    first = (poles[0], weights[0], vectors[0])
    last, done = lax.scan(visit, first, (poles[1:], weights[1:], vectors[1:]))
    poles, weights, vectors = (
        jnp.concatenate([many, one[None]]) for many, one in zip(done, last, strict=True)
    )
    return poles, jnp.where(strength * jnp.abs(weights) <= tolerance, 0, weights), vectors


def _choose(condition: jax.Array, first: _Row, second: _Row) -> _Row:
    poles, weights, vectors = (
        jnp.where(condition, a, b) for a, b in zip(first, second, strict=True)
    )
    return poles, weights, vectors


def _solve_secular(
    poles: jax.Array, weights: jax.Array, strength: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return eigenvalues and, in rows, eigenvectors of `diag(poles) + strength weights weights^T`.

    Row i is about the eigenvalue next above pole i. It is found as a distance from the nearer
    pole, which is exact to its last bit, however small it is.
    """
    free = weights != 0
    squares = strength * weights * weights
    total = jnp.sum(squares)
    above = jnp.where(free & (poles > poles[:, None]), poles, jnp.inf)
    following = jnp.min(above, axis=1)
    is_last = jnp.isinf(following)
    gap = jnp.where(is_last, total, following - poles)

    def secular(shifted: jax.Array, distance: jax.Array) -> jax.Array:
        """Return what has the sign of the side of the root on which a distance lies."""
        return 1 + jnp.sum(jnp.where(free, squares / (shifted - distance[:, None]), 0), axis=1)

    offsets = poles - poles[:, None]
    from_below = is_last | (secular(offsets, gap / 2) >= 0)
    origin = jnp.where(from_below, poles, following)
    shifted = poles - origin[:, None]
    direction = jnp.where(from_below, 1, -1).astype(poles.dtype)
    limit = jnp.where(is_last, gap, gap / 2)
    # Non-negative numbers have the order of their bit patterns, so halving an interval of bit
    # patterns finds the last bit in as many steps as there are bits.
    bits = np.dtype(f"int{poles.dtype.itemsize * 8}")
    low, high = jnp.zeros_like(poles, bits), lax.bitcast_convert_type(limit, bits)

    def halve(_: jax.Array, interval: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = interval
        middle = low + (high - low) // 2
        distance = direction * lax.bitcast_convert_type(middle, poles.dtype)
        beyond = direction * secular(shifted, distance) >= 0
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    low, high = lax.fori_loop(0, bits.itemsize * 8 - 1, halve, (low, high))
    distance = jnp.where(free, direction * lax.bitcast_convert_type(high, poles.dtype), 0)
    origin, shifted = jnp.where(free, origin, poles), jnp.where(free[:, None], shifted, offsets)
    differences = shifted - distance[:, None]
    return origin + distance, _secular_vectors(offsets, differences, weights, free)


def _secular_vectors(
    offsets: jax.Array, differences: jax.Array, weights: jax.Array, free: jax.Array
) -> jax.Array:
    """Return orthogonal eigenvectors, in rows.

    The weights are computed anew as those of which the eigenvalues are exact (Löwner's formula).
    """
    both = free & free[:, None]
    same = np.eye(free.shape[0], dtype=bool)
    ratios = jnp.where(same, differences, differences / jnp.where(same, 1, offsets))
    product = jnp.prod(jnp.where(both, ratios, 1), axis=0)
    exact = jnp.where(free, jnp.sign(weights) * jnp.sqrt(jnp.abs(product)), 0)
    vectors = jnp.where(both, exact / jnp.where(both, differences, 1), 0)
    vectors = vectors / jnp.where(free, jnp.linalg.norm(vectors, axis=1), 1)[:, None]
    return jnp.where(free[:, None], vectors, jnp.where(same, 1, 0).astype(vectors.dtype))


def svd(
    matrix: jax.Array, *, full_matrices: bool, compute_vectors: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return LAPACK's `gesdd`: left vectors in columns, values, right ones in rows, and `info`.

    Values descend. Without `compute_vectors` the vectors are zeros. `info` is 1 where the matrix
    has elements that are not finite, or 0.
    """
    height, width = matrix.shape
    if height < width:
        right, values, left, info = svd(
            matrix.T.conj(), full_matrices=full_matrices, compute_vectors=compute_vectors
        )
        return left.T.conj(), values, right.T.conj(), info
    columns = height if full_matrices else width
    scale, info = scale_of(matrix), info_of_finite(matrix)
    packed, taus = householder_qr(matrix / scale)
    triangle = jnp.where(np.tri(width, dtype=bool).T, packed[:width], 0)
    left, values, right = _svd_of_square(triangle)
    if not compute_vectors:
        zeros = jnp.zeros((height, columns), matrix.dtype)
        return zeros, values * scale, jnp.zeros_like(right), info
    identity = jnp.eye(height, columns, dtype=matrix.dtype)
    left = multiply_by_q(
        packed, taus, identity.at[:width, :width].set(left), left=True, adjoint=False
    )
    return left, values * scale, right, info


def _svd_of_square(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return it from the polar decomposition and the eigenvalues of its Hermitian factor.

    Nakatsukasa and Higham, SIAM J. Sci. Comput. 35, 2013.
    """
    unitary = _unitary_factor(matrix)
    factor = unitary.T.conj() @ matrix
    vectors, values, _ = eigh((factor + factor.T.conj()) / 2, lower=True)
    values, vectors = jnp.maximum(values[::-1], 0), vectors[:, ::-1]
    # Where a singular value is zero the unitary factor has no direction; its columns come last
    # here, and are chosen orthogonal to the others.
    packed, taus = householder_qr(unitary @ vectors)
    diagonal = jnp.diagonal(packed)
    phases = jnp.where(diagonal == 0, 1, diagonal / jnp.abs(diagonal))
    return householder_product(packed, taus) * phases, values, vectors.T.conj()


def _unitary_factor(matrix: jax.Array) -> jax.Array:
    """Return the unitary factor of the polar decomposition.

    It is Halley's method with dynamic weights (Nakatsukasa, Bai and Gygi, SIAM J. Matrix Anal.
    Appl. 31, 2010): while singular values differ widely the iteration is through QR, afterwards
    through Cholesky.
    """
    order = matrix.shape[0]
    real = matrix.real.dtype
    norm = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(matrix)))).astype(real)
    start = matrix / jnp.where(norm > 0, norm, 1)
    weights = _halley_weights(float(np.finfo(real).eps))
    by_qr = np.array([row for row in weights if row[2] > 100], real)
    by_cholesky = np.array([row for row in weights if row[2] <= 100], real)
    identity = jnp.eye(order, dtype=matrix.dtype)

    def with_qr(k: jax.Array, x: jax.Array) -> jax.Array:
        a, b, c = jnp.asarray(by_qr)[k]
        stack = jnp.concatenate([jnp.sqrt(c) * x, identity])
        q = householder_product(*householder_qr(stack))
        correction = (a - b / c) / jnp.sqrt(c) * (q[:order] @ q[order:].T.conj())
        return jnp.add(b / c * x, correction)

    def with_cholesky(k: jax.Array, x: jax.Array) -> jax.Array:
        a, b, c = jnp.asarray(by_cholesky)[k]
        lower, _ = cholesky(identity + c * (x.T.conj() @ x), lower=True)
        solved = solve_lower(lower, x.T.conj(), unit_diagonal=False)
        inner = solve_triangular(
            lower,
            solved,
            left_side=True,
            lower=True,
            transpose=True,
            conjugate=True,
            unit_diagonal=False,
        )
        return jnp.add(b / c * x, (a - b / c) * inner.T.conj())

    nearly: jax.Array = lax.fori_loop(0, len(by_qr), with_qr, start)
    unitary: jax.Array = lax.fori_loop(0, len(by_cholesky), with_cholesky, nearly)
    return unitary


def _halley_weights(smallest: float) -> list[tuple[float, float, float]]:
    """Return the weights that bring singular values from `smallest` to 1 up to 1 the fastest."""
    weights = []
    while abs(1 - smallest) > 1e-15:
        square = smallest * smallest
        d = (4 * (1 - square) / square**2) ** (1 / 3)
        root = math.sqrt(1 + d)
        a = root + math.sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((a, b, c))
        smallest = min(smallest * (a + b * square) / (1 + c * square), 1.0)
    return weights
