"""Factorizations by TensorFlow's kernels.

Those that it lacks are replaced by loops before (`xla_call_module.passes.linear_algebra`). Where
LAPACK reports a failure, such as of a matrix that is not positive definite, TensorFlow raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.core_ops.stablehlo_operation import Emit, Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.linalg.library_calls import TARGETS, array_operands, library_options
from xla_call_module.size_polynomials import Dim, minimum
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

# The nodes that stand for what TensorFlow does not return, which must not be read.
PACKED = "PackedReflectors"


class PackedRead(Exception):  # noqa: N818 - it is no error, and no caller sees it
    """The signal that reflectors are read, so that loops have to compute the decomposition."""


@dataclass(frozen=True, slots=True)
class _Factored:
    """The fact that a value has the reflectors and the triangle of a QR decomposition.

    Attributes:
        matrix: the matrix that was decomposed.
    """

    matrix: Value


def _option(options: Mapping[str, int], name: str, letter: str) -> bool:
    return options[name] == ord(letter)


def _is_lower(options: Mapping[str, int]) -> bool:
    return _option(options, "uplo", "L") if "uplo" in options else bool(options["lower"])


def _transposed(graph: Graph, value: Value, *, conjugate: bool = True) -> Value:
    """Return the adjoint of each matrix, or its transpose."""
    rank = value.rank
    order = [*range(rank - 2), rank - 1, rank - 2]
    return _conjugate(graph, nodes.transpose(graph, value, order), is_needed=conjugate)


def _conjugate(graph: Graph, value: Value, *, is_needed: bool = True) -> Value:
    if value.dtype.kind != "c" or not is_needed:
        return value
    return graph.node("Conj", [graph.expand(value)], shape=value.shape)


def _reals(graph: Graph, value: Value) -> Value:
    """Return the real parts of numbers that are real."""
    if value.dtype.kind != "c":
        return value
    kind = np.dtype(f"f{value.dtype.itemsize // 2}")
    return graph.node("Real", [value], shape=value.shape, dtype=kind)


def _success(value: Value) -> Value:
    """Return 0 for each matrix, which says that all went well."""
    return nodes.constant(0, np.int32).broadcast_to(value.shape[:-2])


def _cholesky_of(graph: Graph, matrix: Value, *, lower: bool) -> Value:
    given = graph.expand(matrix if lower else _transposed(graph, matrix))
    factor = graph.node("Cholesky", [given], shape=given.shape)
    return factor if lower else _transposed(graph, factor)


def _potrf(graph: Graph, op: Operation) -> Sequence[Value]:
    (matrix,) = op.operands
    lower = _is_lower(library_options(op.raw))
    return [_cholesky_of(graph, matrix, lower=lower), _success(matrix)]


def _cholesky(graph: Graph, op: Operation) -> Value:
    return _cholesky_of(graph, op.operands[0], lower=op.flag("lower"))


def _solve(graph: Graph, matrix: Value, right: Value, options: Mapping[str, bool]) -> Value:
    """Return the solution for a triangle, on the left or right side."""
    if options["unit"]:
        size = matrix.shape[-1]
        line = nodes.count_up(graph, size)
        rows, columns = (nodes.expand_dims(graph, line, [axis]) for axis in (1, 0))
        diagonal = nodes.elementwise(graph, "Equal", rows, columns)
        matrix = nodes.where(graph, diagonal, 1, matrix)
    if not options["left"]:  # x a = b, of which the transpose is a' x' = b'
        right = _transposed(graph, right, conjugate=False)
    transpose = options["transpose"] == options["left"]
    matrix = _conjugate(graph, matrix, is_needed=options["conjugate"] != transpose)
    inputs = [graph.expand(matrix), graph.expand(right)]
    made = graph.node(
        "MatrixTriangularSolve",
        inputs,
        shape=right.shape,
        lower=options["lower"],
        adjoint=transpose,
    )
    return made if options["left"] else _transposed(graph, made, conjugate=False)


def _trsm(graph: Graph, op: Operation) -> Sequence[Value]:
    options = library_options(op.raw)
    settings = {
        "left": _option(options, "side", "L"),
        "lower": _option(options, "uplo", "L"),
        "transpose": not _option(options, "trans_x", "N"),
        "conjugate": _option(options, "trans_x", "C"),
        "unit": _option(options, "diag", "U"),
    }
    matrix, right = op.operands
    return [_solve(graph, matrix, right, settings)]


def _triangular_solve(graph: Graph, op: Operation) -> Value:
    options = library_options(op.raw)
    settings = {
        "left": bool(options["left_side"]),
        "lower": bool(options["lower"]),
        "transpose": options.get("transpose_a", 0) > 0,
        "conjugate": options.get("transpose_a", 0) > 1,
        "unit": bool(options["unit_diagonal"]),
    }
    matrix, right = op.operands
    return _solve(graph, matrix, right, settings)


def _syevd(graph: Graph, op: Operation) -> Sequence[Value]:
    (matrix,) = op.operands
    lower = _is_lower(library_options(op.raw))
    given = graph.expand(matrix if lower else _transposed(graph, matrix))
    results = [(given.shape[:-1], given.dtype), (given.shape, given.dtype)]
    values, vectors = graph.nodes_of("SelfAdjointEigV2", [given], results, compute_v=True)
    return [vectors, _reals(graph, values), _success(matrix)]


def _gesdd(graph: Graph, op: Operation) -> Sequence[Value]:
    matrix, options = graph.expand(op.operands[0]), library_options(op.raw)
    *batch, rows, columns = matrix.shape
    width = op.results[2].shape[-1]
    full = width == rows and op.results[3].shape[-2] == columns
    vectors = not _option(options, "mode", "N")
    least = minimum(rows, columns)
    left = rows if full else least
    right = columns if full else least
    shapes = [(*batch, least), (*batch, rows, left), (*batch, columns, right)]
    kinds = [(shape, matrix.dtype) for shape in shapes]
    moves = {"compute_uv": vectors, "full_matrices": full}
    values, u, v = graph.nodes_of("Svd", [matrix], kinds, **moves)
    return [matrix, _reals(graph, values), u, _transposed(graph, v), _success(matrix)]


def _geqrf(graph: Graph, op: Operation) -> Sequence[Value]:
    """Return what only a product of the reflectors, or the triangle of the decomposition, reads."""
    matrix = graph.expand(op.operands[0])
    least = minimum(*matrix.shape[-2:])
    packed = graph.node(PACKED, [matrix], shape=matrix.shape)
    scales = graph.node(PACKED, [matrix], shape=(*matrix.shape[:-2], least), scales=True)
    graph.remember(packed, _Factored(matrix))
    return [packed, scales, _success(matrix)][: len(op.results)]


def _orgqr(graph: Graph, op: Operation) -> Sequence[Value]:
    packed = op.operands[0]
    matrix = _factored(graph, packed)
    if matrix is None:
        op.refuse("its reflectors are not those of a decomposition of a matrix")
    rows, columns = matrix.shape[-2:]
    q = _qr(graph, matrix, full=packed.shape[-1] != minimum(rows, columns))[0]
    results = [q if q.shape == packed.shape else _first_columns(graph, q, packed.shape[-1])]
    return [*results, _success(matrix)][: len(op.results)]


def _first_columns(graph: Graph, value: Value, count: Dim) -> Value:
    return nodes.slice_along(graph, value, value.rank - 1, 0, count)


def _qr(graph: Graph, matrix: Value, *, full: bool) -> list[Value]:
    *batch, rows, columns = matrix.shape
    inner = rows if full else minimum(rows, columns)
    kinds = [((*batch, rows, inner), matrix.dtype), ((*batch, inner, columns), matrix.dtype)]
    return graph.nodes_of("Qr", [matrix], kinds, full_matrices=full)


def _factored(graph: Graph, value: Value) -> Value | None:
    """Return the matrix whose decomposition is packed in a value, or in what it is a part of."""
    name = value.name
    while name:
        if isinstance(fact := graph.recall(name), _Factored):
            return fact.matrix
        node = graph.source(name)
        name = node.inputs[0] if node is not None and node.op_type in ("Pad", "Slice") else ""
    return None


def fuse_triangle(graph: Graph, condition: Value, true: Value, false: Value) -> Value | None:
    """Return the triangle of a QR decomposition where all else is left out; None otherwise."""
    if condition.array is None or condition.array.ndim < 2:
        return None
    for packed, other, flags in ((true, false, condition.array), (false, true, ~condition.array)):
        matrix = _factored(graph, packed)
        upper = np.triu(np.ones(flags.shape[-2:], bool))
        if matrix is None or other.scalar != 0 or not (flags == upper).all():
            continue
        rows, columns = packed.shape[-2:]
        if columns != matrix.shape[-1]:
            continue
        r = _qr(graph, matrix, full=rows != minimum(*matrix.shape[-2:]))[1]
        return nodes.slice_along(graph, r, r.rank - 2, 0, rows)
    return None


def _of_arrays(emit: Emit) -> Emit:
    """Return the rule of a call without the operands that are shapes of its results."""

    def emit_of_arrays(graph: Graph, op: Operation) -> Value | Sequence[Value] | None:
        arrays = tuple(op.operands[place] for place in array_operands(op.raw))
        return emit(graph, dataclasses.replace(op, operands=arrays))

    return emit_of_arrays


_ROUTINES: Mapping[str, Emit] = {
    "geqrf": _geqrf, "gesdd": _gesdd, "heevd": _syevd, "orgqr": _orgqr, "potrf": _potrf,
    "syevd": _syevd, "trsm": _trsm, "ungqr": _orgqr,
}  # fmt: skip
CUSTOM_CALLS = {
    name: Rule(
        _of_arrays(_ROUTINES[target.routine]), (*CUSTOM_CALL_ATTRIBUTES, "sdy.sharding_rule")
    )
    for name, target in TARGETS.items()
    if target.library == "lapack" and target.routine in _ROUTINES
}
QR_CALLS = frozenset(
    name for name in CUSTOM_CALLS if TARGETS[name].routine in ("geqrf", "orgqr", "ungqr")
)
RULES = {
    "stablehlo.cholesky": Rule(_cholesky, ("lower",)),
    "stablehlo.triangular_solve": Rule(
        _triangular_solve, ("left_side", "lower", "transpose_a", "unit_diagonal")
    ),
}
