"""Operations that treat each element for itself, and arithmetic of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.batching.rowwise.row_operation import RowOperation, Rule, element_of
from bridge.batching.rowwise.row_value import BatchValue, Elements, elements_of
from xla_call_module.size_polynomials import (
    ARITHMETIC,
    Atom,
    Dim,
    Iteration,
    atoms_of,
    compare,
    lower_bound,
    maximum,
    minimum,
)
from xla_call_module.stablehlo.attributes import comparison_direction

__all__ = ["RULES", "elements_or_none"]

_Known = Dim | None
_WIDE = ("i32", "i64", "ui32", "ui64", "si32", "si64")


def elementwise(op: RowOperation) -> BatchValue:
    """The result where that of each element depends on the operands' elements at its place."""
    rows = op.joined()
    return op.value(op.shape_of(op.operands), rows, elements=_elements(op))


def several(op: RowOperation) -> list[BatchValue]:
    """Return the results of an elementwise operation that has several."""
    op.data()
    shape, rows = op.shape_of(op.operands), op.joined()
    return [op.value(shape, rows, index=i) for i in range(len(op.types))]


def each(op: RowOperation) -> list[BatchValue]:
    """Return the operands as results."""
    return list(op.operands)


def same(op: RowOperation) -> BatchValue:
    """A result that is the first operand."""
    return op.operands[0]


def _elements(op: RowOperation) -> Elements | None:
    """The elements of the result.

    Raises:
        RowsMixedError: the size of the batch is among those of the operands, and something is
            computed of it that is no size.
    """
    if all(value.elements is None for value in op.operands):
        return None
    element = op.element
    compute = _rule_for(op, element)
    arrays = [elements_or_none(value) for value in op.operands]
    if compute is None:
        op.data()
        return None
    broadcast: list[Any] = list(np.broadcast_arrays(*_of_one_rank(arrays)))
    results = np.empty(broadcast[0].shape, object)
    for place in np.ndindex(results.shape):
        taken: list[_Known] = [array[place] for array in broadcast]
        computed = _if_representable(compute(*taken), element)
        if computed is None and any(map(op.batch.is_in, taken)):
            op.data()
        results[place] = computed
    return elements_of(results)


def elements_or_none(value: BatchValue) -> np.ndarray[Any, Any]:
    """The elements as an array that broadcasts to the value; None for what is not known."""
    if value.elements is not None:
        return value.elements.array
    return np.full((1,) * value.rank, None, object)


def _of_one_rank(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    rank = max(array.ndim for array in arrays)
    return [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]


def _if_representable(dim: _Known, element: str) -> _Known:
    """Return a number that its type has; None where it may wrap around.

    The size of an array is never beyond a type of indices, nor is the place of a row; what is made
    of a place may be.
    """
    if isinstance(dim, int):
        bits = 1 if element == "i1" else int(element.lstrip("usi"))
        is_signed = bits > 1 and not element.startswith("u")
        low, high = (-1 << bits - 1, 1 << bits - 1) if is_signed else (0, 1 << bits)
        return dim if low <= dim < high else None
    if dim is None or not any(map(_is_place, atoms_of(dim))):
        return dim
    places = [(atoms, n) for atoms, n in dim.terms if any(map(_is_place, atoms))]
    return dim if len(places) == 1 and len(places[0][0]) == 1 and abs(places[0][1]) == 1 else None


def _is_place(atom: Atom) -> bool:
    return isinstance(atom, Iteration)


def _rule_for(op: RowOperation, element: str) -> Callable[..., _Known] | None:
    name = op.name.removeprefix("stablehlo.")
    if name == "compare":
        direction = comparison_direction(op.raw)
        return _known(lambda a, b: compare(direction, a, b))
    if name in ("and", "or", "not"):
        return _LOGIC[name] if element == "i1" else None
    if name == "select":
        return _select
    if element not in _WIDE:
        return None
    if name == "convert":
        return _same if "f" not in element_of(op.raw.operands[0]) else None
    return _ARITHMETIC.get(name)


def _known(compute: Callable[..., _Known]) -> Callable[..., _Known]:
    """The rule for operands that are all known."""
    return lambda *dims: None if None in dims else compute(*dims)


def _same(dim: _Known) -> _Known:
    return dim


def _select(chosen: _Known, left: _Known, right: _Known) -> _Known:
    if chosen is None:
        return left if left == right else None
    return left if chosen else right


def _and(left: _Known, right: _Known) -> _Known:
    if left == 0 or right == 0:
        return 0
    return 1 if left == 1 and right == 1 else None


def _or(left: _Known, right: _Known) -> _Known:
    if left == 1 or right == 1:
        return 1
    return 0 if left == 0 and right == 0 else None


def _not(known: _Known) -> _Known:
    return 1 - known if isinstance(known, int) else None


def _sign(dim: Dim) -> _Known:
    if isinstance(dim, int):
        return (dim > 0) - (dim < 0)
    least = lower_bound(dim)
    return 1 if least is not None and least > 0 else None


_LOGIC: Mapping[str, Callable[..., _Known]] = {"and": _and, "or": _or, "not": _not}
_ARITHMETIC: Mapping[str, Callable[..., _Known]] = {
    **{name: _known(compute) for name, compute in ARITHMETIC.items()},
    "negate": _known(lambda a: a * -1),
    "clamp": _known(lambda low, x, high: minimum(maximum(x, low), high)),
    "sign": _known(_sign),
}

_NAMES = (
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "complex", "convert",
    "cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor",
    "imag", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply",
    "negate", "not", "or", "popcnt", "power", "real", "reduce_precision", "remainder",
    "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan",
    "tanh", "xor",
)  # fmt: skip
_CHLO = (
    "acos", "acosh", "asin", "asin_acos_kernel", "asinh", "atan", "atanh", "bessel_i1e", "conj",
    "cosh", "digamma", "erf", "erf_inv", "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma",
    "next_after", "polygamma", "sinh", "square", "tan", "zeta",
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    **{f"stablehlo.{name}": elementwise for name in _NAMES},
    **{f"chlo.{name}": elementwise for name in _CHLO},
    "stablehlo.optimization_barrier": each,
    "sdy.sharding_constraint": same,
}
