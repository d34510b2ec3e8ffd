"""The library calls that JAX's linear algebra lowers to, and what computes the same without them.

`library_calls` has their names. Operands, results and attributes are those of
jax/_src/lax/linalg.py, which has had these names from JAX 0.7.1 to 0.10.2:
https://github.com/jax-ml/jax/blob/main/jax/_src/lax/linalg.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from xla_call_module.linalg import factorizations, spectra, tridiagonals
from xla_call_module.linalg.library_calls import OPERATIONS, TARGETS
from xla_call_module.linalg.triangular import solve_triangular
from xla_call_module.stablehlo.modules import TensorType

Attributes = Mapping[str, int]
Arrays = tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """One routine of a library.

    Attributes:
        ranks: the ranks of the operands, without the batch dimensions.
        compute: the function from the call's attributes and the operands of one matrix to the
            results. Where the library may report how it went, `info` is the last of them. Beside
            the library's own attributes there are `rows_i` and `columns_i`, the last dimensions of
            result i, where they are static.
        free_axis: the function from the call's attributes to an operand and that axis of it, -1 or
            -2, whose size may be symbolic, as that of a batch may: the axis of right-hand sides.
            None for a routine without such an axis.
    """

    ranks: tuple[int, ...]
    compute: Callable[..., Arrays]
    free_axis: Callable[[Attributes], tuple[int, int]] | None = None

    def symbolic_matrix(
        self, attributes: Attributes, operands: Sequence[TensorType]
    ) -> TensorType | None:
        """Return the first operand with a symbolic size that has to be static, if there is one."""
        free = self.free_axis and self.free_axis(attributes)
        for place, (rank, type_) in enumerate(zip(self.ranks, operands, strict=True)):
            sizes = {axis - rank: type_.shape[axis - rank] for axis in range(rank)}
            if any(dim is None and (place, axis) != free for axis, dim in sizes.items()):
                return type_
        return None


# One of these is part of the target of every library call, and so of a module that has one.
MARKS = (b"lapack_", b"solver_", b"sparse_", b"hybrid_", b"_lu_pivots_")
# A part of every module that has one of the operations that are such routines.
OPERATION_MARKS = (b"cholesky_v", b"triangular_solve_v")


def parse_target(target: str) -> Routine | None:
    """Return the factorization of a custom call's target, if it has a portable form.

    Example:
        >>> parse_target("lapack_spotrf_ffi").ranks
        (2,)
        >>> parse_target("lapack_sgeev_ffi") is None
        True
    """
    listed = TARGETS.get(target) or OPERATIONS.get(target)
    if listed is None:
        return None
    return _LIBRARIES.get(listed.library, {}).get(listed.routine)


def is_portable(target: str) -> bool:
    """Return whether a custom call can be replaced by operations that run everywhere."""
    return parse_target(target) is not None


def _is(attributes: Attributes, name: str, letter: str) -> bool:
    """Return whether an attribute is this letter, as LAPACK's options are."""
    return attributes[name] == ord(letter)


def _is_lower(attributes: Attributes) -> bool:
    return _is(attributes, "uplo", "L") if "uplo" in attributes else bool(attributes["lower"])


def _potrf(attributes: Attributes, matrix: jax.Array) -> Arrays:
    """Return the factor in one triangle; the other one stays as it was."""
    lower = _is_lower(attributes)
    factor, info = factorizations.cholesky(matrix, lower=lower)
    ones = np.ones(matrix.shape, bool)
    return jnp.where(np.tril(ones) if lower else np.triu(ones), factor, matrix), info


def _geqrf(_: Attributes, matrix: jax.Array) -> Arrays:
    return (*factorizations.householder_qr(matrix), jnp.int32(0))


def _geqp3(_: Attributes, matrix: jax.Array, pivots: jax.Array) -> Arrays:
    packed, order, taus = factorizations.pivoted_qr(matrix, pivots)
    return packed, order, taus, jnp.int32(0)


def _orgqr(_: Attributes, packed: jax.Array, taus: jax.Array) -> Arrays:
    return factorizations.householder_product(packed, taus), jnp.int32(0)


def _ormqr(attributes: Attributes, packed: jax.Array, taus: jax.Array, other: jax.Array) -> Arrays:
    left, adjoint = _is_left(attributes), bool(attributes["transpose"])
    product = factorizations.multiply_by_q(packed, taus, other, left=left, adjoint=adjoint)
    return product, jnp.int32(0)


def _trsm(attributes: Attributes, triangle: jax.Array, right: jax.Array) -> Arrays:
    solution = solve_triangular(
        triangle,
        right,
        left_side=_is_left(attributes),
        lower=_is(attributes, "uplo", "L"),
        transpose=not _is(attributes, "trans_x", "N"),
        conjugate=_is(attributes, "trans_x", "C"),
        unit_diagonal=_is(attributes, "diag", "U"),
    )
    return (solution,)


def _gtsv(
    _: Attributes, below: jax.Array, diagonal: jax.Array, above: jax.Array, right: jax.Array
) -> Arrays:
    solution, info = tridiagonals.solve(below, diagonal, above, right)
    return below, diagonal, above, solution, info


def _gtsv_of_gpu(_: Attributes, *operands: jax.Array) -> Arrays:
    return (tridiagonals.solve(*operands)[0],)


def _syevd(attributes: Attributes, matrix: jax.Array) -> Arrays:
    return spectra.eigh(matrix, lower=_is_lower(attributes))


def _sytrd(attributes: Attributes, matrix: jax.Array) -> Arrays:
    reduced = tridiagonals.reduce_hermitian(matrix, lower=_is_lower(attributes))
    return (*reduced, jnp.int32(0))


def _gesdd(attributes: Attributes, matrix: jax.Array) -> Arrays:
    vectors = not _is(attributes, "mode", "N")
    # Without vectors there is room for them all the same, and the mode does not say how much.
    full = (attributes["columns_2"], attributes["rows_3"]) == matrix.shape
    left, values, right, info = spectra.svd(matrix, full_matrices=full, compute_vectors=vectors)
    return matrix, values, left, right, info


def _gesvd_of_gpu(attributes: Attributes, matrix: jax.Array) -> Arrays:
    left, values, right, info = _svd_of_gpu(attributes, matrix)
    if attributes.get("transposed", 0):
        return matrix, values, right, left, info
    return matrix, values, left, right, info


def _gesvdj(attributes: Attributes, matrix: jax.Array) -> Arrays:
    """Return the factors of Jacobi's and the polar method: V where the others have its adjoint."""
    left, values, right, info = _svd_of_gpu(attributes, matrix)
    return matrix, values, left, right.T.conj(), info


def _svd_of_gpu(attributes: Attributes, matrix: jax.Array) -> Arrays:
    return spectra.svd(
        matrix,
        full_matrices=bool(attributes["full_matrices"]),
        compute_vectors=bool(attributes["compute_uv"]),
    )


def _syrk(
    attributes: Attributes, a: jax.Array, c: jax.Array, alpha: jax.Array, beta: jax.Array
) -> Arrays:
    product = a.T @ a if attributes["transpose"] else a @ a.T
    return (alpha * product + beta * c,)


def _permutation(attributes: Attributes, swaps: jax.Array) -> Arrays:
    return (factorizations.permutation(swaps, attributes["columns_0"]),)


def _cholesky(attributes: Attributes, matrix: jax.Array) -> Arrays:
    """Return the factor, zero in the other triangle, and NaN where there is none."""
    factor, info = factorizations.cholesky(_wide(matrix), lower=bool(attributes["lower"]))
    return (jnp.where(info == 0, factor, jnp.nan).astype(matrix.dtype),)


def _triangular_solve(attributes: Attributes, triangle: jax.Array, right: jax.Array) -> Arrays:
    transposition = attributes["transpose_a"]
    solution = solve_triangular(
        _wide(triangle),
        _wide(right),
        left_side=_is_left(attributes),
        lower=bool(attributes["lower"]),
        transpose=transposition > 0,
        conjugate=transposition > 1,
        unit_diagonal=bool(attributes["unit_diagonal"]),
    )
    return (solution.astype(right.dtype),)


def _wide(matrix: jax.Array) -> jax.Array:
    """Return the matrix in float32 where its elements are smaller."""
    return matrix.astype(jnp.promote_types(matrix.dtype, jnp.float32))


def _is_left(attributes: Attributes) -> bool:
    if "side" in attributes:
        return _is(attributes, "side", "L")
    return bool(attributes["left_side"] if "left_side" in attributes else attributes["left"])


def _right_of_triangle(attributes: Attributes) -> tuple[int, int]:
    return 1, -1 if _is_left(attributes) else -2


def _right_of_reflectors(attributes: Attributes) -> tuple[int, int]:
    return 2, -1 if _is_left(attributes) else -2


def _right_of_diagonals(_: Attributes) -> tuple[int, int]:
    return 3, -1


def _inner_axis(attributes: Attributes) -> tuple[int, int]:
    return 0, -2 if attributes["transpose"] else -1


# LAPACK's names have a letter for the dtype, and its Hermitian routines another name.
_LAPACK = {
    "potrf": Routine((2,), _potrf),
    "getrf": Routine((2,), lambda _, matrix: factorizations.lu(matrix)),
    "geqrf": Routine((2,), _geqrf),
    "geqp3": Routine((2, 1), _geqp3),
    "orgqr": Routine((2, 1), _orgqr),
    "ungqr": Routine((2, 1), _orgqr),
    "ormqr": Routine((2, 1, 2), _ormqr, _right_of_reflectors),
    "unmqr": Routine((2, 1, 2), _ormqr, _right_of_reflectors),
    "trsm": Routine((2, 2), _trsm, _right_of_triangle),
    "gtsv": Routine((1, 1, 1, 2), _gtsv, _right_of_diagonals),
    "syevd": Routine((2,), _syevd),
    "heevd": Routine((2,), _syevd),
    "sytrd": Routine((2,), _sytrd),
    "hetrd": Routine((2,), _sytrd),
    "gesdd": Routine((2,), _gesdd),
    "gesvd": Routine((2,), _gesdd),
}
_SOLVER = {
    **{name: _LAPACK[name] for name in ("potrf", "getrf", "geqrf", "orgqr", "ormqr", "sytrd")},
    "syevd": Routine((2,), _syevd),
    "gesvd": Routine((2,), _gesvd_of_gpu),
    "gesdd": Routine((2,), _gesvd_of_gpu),
    "gesvdj": Routine((2,), _gesvdj),
    "gesvdp": Routine((2,), _gesvdj),
    "syrk": Routine((2, 2, 0, 0), _syrk, _inner_axis),
}
_LIBRARIES: Mapping[str, Mapping[str, Routine]] = {
    "lapack": _LAPACK,
    "solver": _SOLVER,
    "sparse": {"gtsv2": Routine((1, 1, 1, 2), _gtsv_of_gpu, _right_of_diagonals)},
    "hybrid": {"geqp3": _LAPACK["geqp3"]},
    "gpu": {"lu_pivots_to_permutation": Routine((1,), _permutation)},
    "stablehlo": {
        "cholesky": Routine((2,), _cholesky),
        "triangular_solve": Routine((2, 2), _triangular_solve, _right_of_triangle),
    },
}
