"""Steps that factorizations share: blocks of matrices, their scale, and LAPACK's `info`.

Every function here is of one matrix; `jax.vmap` makes it one of a batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# The order of the diagonal blocks: a power of two. Larger ones make fewer and larger products,
# smaller ones fewer sequential steps in all; 32 was the fastest of 16, 32 and 64 at N = 256.
BLOCK = 32


def block_size(order: int) -> int:
    """Return the block for a matrix of this order: `BLOCK`, or the next power of two if less."""
    return min(BLOCK, 1 << max(order - 1, 0).bit_length())


def pad_to_blocks(matrix: jax.Array, rows: int, columns: int) -> jax.Array:
    """Return the matrix with zeros behind it, so that the sizes are multiples of these."""
    shape = matrix.shape
    padding = ((0, -shape[0] % rows), (0, -shape[1] % columns))
    return jnp.pad(matrix, padding)


def item(array: jax.Array, index: jax.Array, axis: int = 0) -> jax.Array:
    """Return the row, column or element at an index that is known when the program runs."""
    taken: jax.Array = lax.dynamic_index_in_dim(array, index, axis, keepdims=False)
    return taken


def hermitian_of_lower(matrix: jax.Array) -> jax.Array:
    """Return the Hermitian matrix whose lower triangle is that of a matrix."""
    strict = jnp.where(np.tri(matrix.shape[0], k=-1, dtype=bool), matrix, 0)
    return strict + strict.T.conj() + jnp.diag(jnp.diagonal(matrix).real.astype(matrix.dtype))


def magnitude(values: jax.Array) -> jax.Array:
    """Return LAPACK's measure of pivots: the absolute value, of complex numbers the 1-norm."""
    if jnp.iscomplexobj(values):
        return jnp.abs(values.real) + jnp.abs(values.imag)
    return jnp.abs(values)


def scale_of(array: jax.Array) -> jax.Array:
    """Return the largest real or imaginary part; 1 where that is zero or not finite."""
    largest = jnp.max(jnp.maximum(jnp.abs(array.real), jnp.abs(array.imag)))
    return jnp.where((largest > 0) & jnp.isfinite(largest), largest, jnp.ones_like(largest))


def info_of_finite(matrix: jax.Array) -> jax.Array:
    """Return the `info` of a matrix: 1 where it has elements that are not finite, or 0.

    Its largest element does not tell: TensorFlow lets XLA pass over NaNs there.
    """
    return jnp.where(jnp.isfinite(matrix).all(), 0, 1).astype(jnp.int32)


def info_of_failures(failures: jax.Array) -> jax.Array:
    """Return the `info` of a factorization: the first failure, counted from 1, or 0."""
    return jnp.where(failures.any(), jnp.argmax(failures) + 1, 0).astype(jnp.int32)
