"""Calls of linear algebra libraries as the functions of `jax.lax.linalg` that are lowered to them.

A rule takes the call, its options and its arrays, and returns the results that JAX has, in the
order of the library's, with None for one that it has not. `info` is `_STATUS` among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import linalg

from bridge.lifting.householder_factors import HouseholderFactors, HouseholderScales, factorize
from bridge.lifting.known_values import LiftedValue, as_array
from bridge.lifting.library_status import LibraryByproduct, LibraryStatus, is_zero
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.linalg.library_calls import (
    OPERATIONS,
    TARGETS,
    LibraryTarget,
    array_operands,
    library_options,
    library_routine,
)
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

_Options = Mapping[str, int]
_Results = Sequence[LiftedValue | None]
_Compute = Callable[..., _Results]

# Stands for the `info` of a call among the results of a rule.
_STATUS = object()
# The routines that make Q of Householder vectors.
_PRODUCTS = ("orgqr", "ungqr")


def _lift(op: LiftedOperation) -> list[LiftedValue]:
    """Return the results of a library call, those that JAX has not as what refuses to be used."""
    target = library_routine(op.raw)
    assert target is not None
    operands = [op.operands[place] for place in array_operands(op.raw)]
    options = library_options(op.raw)
    known = list(_COMPUTE[target.routine](op, options, *_arrays(target, operands)))
    count = len(op.raw.results)
    known = (known + [None] * count)[:count]
    return [_result(op, index, value) for index, value in enumerate(known)]


def _result(op: LiftedOperation, index: int, value: Any) -> LiftedValue:
    if value is _STATUS:
        return LibraryStatus(op, index)
    return LibraryByproduct(op, index) if value is None else value


def _arrays(target: LibraryTarget, operands: Sequence[LiftedValue]) -> list[LiftedValue]:
    """Return the operands as arrays; those of `orgqr` may be factors that JAX's `qr` made."""
    if target.routine in _PRODUCTS:
        return list(operands)
    return [jnp.asarray(as_array(operand)) for operand in operands]


def _is_lower(options: _Options) -> bool:
    return options["uplo"] == ord("L") if "uplo" in options else bool(options["lower"])


def _flag(options: _Options, name: str) -> bool:
    """Return a flag, or whether a letter of LAPACK's is that for vectors."""
    return options.get(name, 0) in (1, ord("V"))


def _adjoint(matrix: Any) -> Any:
    return jnp.conj(jnp.swapaxes(matrix, -1, -2))


def _potrf(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    del op
    if _is_lower(options):
        return linalg.cholesky_p.bind(matrix), _STATUS
    return _adjoint(linalg.cholesky_p.bind(_adjoint(matrix))), _STATUS


def _cholesky(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    return _potrf(op, options, matrix)[:1]


def _getrf(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    del op, options
    packed, pivots, _ = linalg.lu(matrix)
    return packed, pivots + 1, _STATUS  # LAPACK counts from 1


def _lu(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    del op, options
    return linalg.lu(matrix)


def _permutation(op: LiftedOperation, options: _Options, swaps: Any) -> _Results:
    del options
    return (linalg.lu_pivots_to_permutation(swaps, op.shape[-1]),)


def _geqrf(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    del options
    columns = _columns_of_q(op.raw.results[1])
    if columns is None:  # only the packed matrix is wanted, which has no derivative
        transposed, scales = jnp.linalg.qr(matrix, mode="raw")
        return transposed.mT, scales, _STATUS
    return (*_householder(matrix, columns, pivoting=False), _STATUS)


def _geqp3(op: LiftedOperation, options: _Options, matrix: Any, fixed: Any) -> _Results:
    del options, fixed
    if not is_zero(op.raw.operands[1]):
        op.refuse("some columns come first, and JAX's qr has no such option")
    columns = _columns_of_q(op.raw.results[2]) or min(matrix.shape[-2:])
    packed, scales = _householder(matrix, columns, pivoting=True)
    return packed, packed.factors.order + 1, scales, _STATUS  # LAPACK counts from 1


def _householder(
    matrix: Any, columns: int, *, pivoting: bool
) -> tuple[HouseholderFactors, HouseholderScales]:
    rows, width = matrix.shape[-2:]
    factors = factorize(matrix, full=columns > min(rows, width), pivoting=pivoting)
    return HouseholderFactors(factors, rows, width), HouseholderScales(factors)


def _columns_of_q(scales: Any) -> int | None:
    """Return how many columns of Q are made with some scales; None if it is not made of them."""
    for use in scales.uses:
        user = use.owner.operation
        target = library_routine(user)
        if target is not None and target.routine in _PRODUCTS:
            return int(user.results[0].type.shape[-1])
        onwards = None
        if user.name == "stablehlo.return" and user.parent.name == "stablehlo.case":
            onwards = user.parent.results[use.operand_number]
        if user.name == "stablehlo.select":  # NaN where the library failed
            onwards = user.results[0]
        columns = None if onwards is None else _columns_of_q(onwards)
        if columns is not None:
            return columns
    return None


def _orgqr(op: LiftedOperation, options: _Options, packed: Any, scales: Any) -> _Results:
    del op, options
    if isinstance(packed, HouseholderFactors) and isinstance(scales, HouseholderScales):
        factors = packed.factors
        rows, width = factors.matrix.shape[-2:]
        whole = packed.rows == rows and packed.columns in (min(rows, width), rows)
        if factors is scales.factors and whole:
            return factors.q_of(packed.columns), _STATUS
    return linalg.householder_product(as_array(packed), as_array(scales)), _STATUS


def _ormqr(op: LiftedOperation, options: _Options, *operands: Any) -> _Results:
    if not hasattr(linalg, "ormqr"):
        op.refuse("this JAX has no ormqr", "install a newer JAX")
    left, transpose = bool(options["left"]), bool(options["transpose"])
    return (linalg.ormqr(*operands, left=left, transpose=transpose),)


def _trsm(op: LiftedOperation, options: _Options, *operands: Any) -> _Results:
    triangle, right = operands[:2]
    for value in op.operands:  # a scale, which some versions pass as a scalar
        is_scale = np.shape(value) == () and jnp.issubdtype(jnp.result_type(value), jnp.inexact)
        if is_scale and not (isinstance(value, np.ndarray) and value == 1):
            op.refuse("it scales the right-hand sides, which JAX's triangular_solve does not")
    if "side" in options:
        left, unit = options["side"] == ord("L"), options["diag"] == ord("U")
        transposition = "NTC".index(chr(options["trans_x"]))
    else:
        left, unit = bool(options["left_side"]), bool(options["unit_diagonal"])
        transposition = options.get("transpose_a", 0)
    solution = linalg.triangular_solve(
        triangle,
        right,
        left_side=left,
        lower=_is_lower(options),
        transpose_a=transposition > 0,
        conjugate_a=transposition > 1,
        unit_diagonal=unit,
    )
    return (solution,)


def _gtsv(op: LiftedOperation, options: _Options, *operands: Any) -> _Results:
    del op, options
    return None, None, None, linalg.tridiagonal_solve(*operands), _STATUS


def _gtsv_of_gpu(op: LiftedOperation, options: _Options, *operands: Any) -> _Results:
    del op, options
    return (linalg.tridiagonal_solve(*operands),)


def _gtsv_perturbed(op: LiftedOperation, options: _Options, *operands: Any) -> _Results:
    del options
    try:
        return (linalg.tridiagonal_solve(*operands, perturb_singular=True),)
    except TypeError:
        op.refuse("this JAX has no tridiagonal_solve that perturbs", "install a newer JAX")


def _syevd(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    if options.get("mode", ord("V")) != ord("V"):
        op.refuse("it computes eigenvalues alone, which JAX's eigh does not")
    names = {1: "QR", 2: "JACOBI"}
    vectors, values = _eigh(
        matrix, names.get(options.get("algorithm", 0)), lower=_is_lower(options)
    )
    return vectors, values, _STATUS


def _eigh(matrix: Any, name: str | None, *, lower: bool, **options: Any) -> tuple[Any, Any]:
    if name is not None and hasattr(linalg, "EighImplementation"):
        options["implementation"] = linalg.EighImplementation[name]
    results: tuple[Any, Any] = linalg.eigh(matrix, lower=lower, symmetrize_input=False, **options)
    return results


def _eigh_of_tpu(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    """Return what JAX computes for `lower,sort,sweeps,tolerance`.

    XLA expands this call by Jacobi's method on every platform. JAX offers that method on TPUs
    alone, so each platform uses its own.
    """
    del options
    lower, sort, *_ = op.text("backend_config").split(",")
    return _eigh(matrix, None, lower=lower == "1", sort_eigenvalues=sort == "1")


def _geev(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    target = library_routine(op.raw)
    assert target is not None
    left, right = (
        any(_flag(options, name) for name in names)
        for names in (("compute_left", "left"), ("compute_right", "right"))
    )
    values, *vectors = linalg.eig(
        matrix, compute_left_eigenvectors=left, compute_right_eigenvectors=right
    )
    is_real = not jnp.iscomplexobj(matrix)
    sides = [vectors.pop(0) if wanted else None for wanted in (left, right)]
    if target.library == "solver":
        packed = [_packed_pairs(values, side) if is_real else side for side in sides]
        return None, values, *packed, _STATUS
    parts = [lax.real(values), lax.imag(values)] if is_real else [values]
    return *parts, *sides, _STATUS


def _packed_pairs(values: Any, vectors: Any) -> Any:
    """Return eigenvectors as LAPACK has them for real matrices: two columns for a complex pair."""
    if vectors is None:
        return None
    is_second = lax.expand_dims(lax.imag(values) < 0, (values.ndim - 1,))
    return jnp.where(is_second, -lax.imag(vectors), lax.real(vectors))


def _gees(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    if options.get("sort", ord("N")) != ord("N"):
        op.refuse("it sorts eigenvalues, which JAX's schur does not")
    vectors = _flag(options, "mode")
    form, *rest = linalg.schur(matrix, compute_schur_vectors=vectors)
    basis = rest[0] if rest else None
    values = [None] if jnp.iscomplexobj(matrix) else [None, None]
    return form, basis, *values, None, _STATUS


def _gehrd(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    order = matrix.shape[-1]
    if (options.get("low", 1), options.get("high", order)) != (1, order):
        op.refuse("it reduces a part of the matrix, and JAX's hessenberg all of it")
    return *linalg.hessenberg(matrix), _STATUS


def _sytrd(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    del op
    return *linalg.tridiagonal(matrix, lower=_is_lower(options)), _STATUS


def _gesdd(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    return _svd(op, matrix, None, vectors=_has_vectors(options))


def _gesvd(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    target = library_routine(op.raw)
    assert target is not None
    # It is what GPUs take for large matrices when nothing is asked for.
    is_default = target.library == "solver" and max(matrix.shape[-2:]) > 1024
    return _svd(op, matrix, None if is_default else "QR", vectors=_has_vectors(options))


def _has_vectors(options: _Options) -> bool:
    """Return whether singular vectors are computed."""
    if "mode" in options:
        return options["mode"] != ord("N")
    return bool(options.get("compute_uv", 0))


def _svd(op: LiftedOperation, matrix: Any, name: str | None, *, vectors: bool) -> _Results:
    algorithm = None if name is None else linalg.SvdAlgorithm[name]
    if not vectors:
        values = linalg.svd(matrix, compute_uv=False, full_matrices=False, algorithm=algorithm)
        return None, values, None, None, _STATUS
    shapes = [op.types[index].shape[-2:] for index in (2, 3)]
    rows, columns = matrix.shape[-2:]
    # A routine for the transposed matrix has the right vectors first.
    is_transposed = rows < columns and shapes[0][1] == columns
    (_, left_count), (right_count, _) = reversed(shapes) if is_transposed else shapes
    full = (left_count, right_count) == (rows, columns)
    if rows == columns:  # the sizes do not say it, and older versions differentiate thin ones only
        options = library_options(op.raw)
        full = options.get("mode") == ord("A") or bool(options.get("full_matrices", 0))
    left, values, right = linalg.svd(matrix, full_matrices=full, algorithm=algorithm)
    return None, values, *((right, left) if is_transposed else (left, right)), _STATUS


def _gesvdj(op: LiftedOperation, options: _Options, matrix: Any) -> _Results:
    target = library_routine(op.raw)
    assert target is not None
    rows, columns = matrix.shape[-2:]
    # Jacobi's is what GPUs take for small matrices when nothing is asked for.
    is_default = target.routine == "gesvdj" and max(rows, columns) <= 1024
    name = "POLAR" if target.routine == "gesvdp" else "JACOBI"
    algorithm = None if is_default else linalg.SvdAlgorithm[name]
    if not _has_vectors(options):
        values = linalg.svd(matrix, compute_uv=False, full_matrices=False, algorithm=algorithm)
        return None, values, None, None, _STATUS
    counts = op.types[2].shape[-1], op.types[3].shape[-1]
    full = counts == (rows, columns) and not _is_cut(op.raw.results[2], min(rows, columns))
    left, values, right = linalg.svd(matrix, full_matrices=full, algorithm=algorithm)
    right = _adjoint(right)
    return None, values, _widened(left, counts[0]), _widened(right, counts[1]), _STATUS


def _is_cut(value: Any, count: int) -> bool:
    """Return whether all uses of a matrix are slices of its first columns."""
    users = [use.owner.operation for use in value.uses]
    return all(
        user.name == "stablehlo.slice" and user.results[0].type.shape[-1] == count for user in users
    ) and bool(users)


def _widened(matrix: Any, columns: Any) -> Any:
    more = columns - matrix.shape[-1]
    widths = [(0, 0, 0)] * (matrix.ndim - 1) + [(0, more, 0)]
    return lax.pad(matrix, np.zeros((), matrix.dtype), widths) if more else matrix


def _syrk(
    op: LiftedOperation, options: _Options, a: Any, c: Any, alpha: Any, beta: Any
) -> _Results:
    if options.get("transpose", 0):
        op.refuse("it multiplies by the transposed matrix first, which JAX has no function for")
    del alpha, beta
    scale, other = float(op.constant(2)), float(op.constant(3))
    return (linalg.symmetric_product(a, c, alpha=scale, beta=other),)


def _update(op: LiftedOperation, options: _Options, factor: Any, vector: Any) -> _Results:
    del op, options
    return (linalg.cholesky_update(factor, vector),)


_COMPUTE: Mapping[str, _Compute] = {
    "cholesky": _cholesky,
    "cholesky_update": _update,
    "eigh": _eigh_of_tpu,
    "gees": _gees,
    "geev": _geev,
    "gehrd": _gehrd,
    "geqp3": _geqp3,
    "geqrf": _geqrf,
    "gesdd": _gesdd,
    "gesvd": _gesvd,
    "gesvdj": _gesvdj,
    "gesvdp": _gesvdj,
    "getrf": _getrf,
    "gtsv": _gtsv,
    "gtsv2": _gtsv_of_gpu,
    "gtsv_perturbed": _gtsv_perturbed,
    "heevd": _syevd,
    "hetrd": _sytrd,
    "lu": _lu,
    "lu_pivots_to_permutation": _permutation,
    "orgqr": _orgqr,
    "ormqr": _ormqr,
    "potrf": _potrf,
    "syevd": _syevd,
    "syevj": _syevd,
    "syrk": _syrk,
    "sytrd": _sytrd,
    "triangular_solve": _trsm,
    "trsm": _trsm,
    "ungqr": _orgqr,
    "unmqr": _ormqr,
}

RULES = {
    name: LiftingRule(_lift, ("left_side", "lower", "transpose_a", "unit_diagonal"))
    for name in OPERATIONS
}
CUSTOM_CALLS = {
    name: LiftingRule(_lift, (*CUSTOM_CALL_ATTRIBUTES, "sdy.sharding_rule")) for name in TARGETS
}
