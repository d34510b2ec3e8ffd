"""The function that a region of two elements is, when it is applied along a dimension.

Reductions, windows, scatters and sorts have such regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Region
from bridge.onnx.graph.values import Value, constant_array
from xla_call_module.dtypes import Array

__all__ = [
    "IDENTITIES",
    "depends_on_order",
    "identity_of",
    "is_identity",
    "orders_first",
    "reducer_of",
]

# The operations of which ONNX has reductions; `replace` hands on its second argument.
IDENTITIES: Mapping[str, str] = {
    "add": "0", "and": "all", "maximum": "least", "minimum": "greatest", "multiply": "1",
    "or": "none",
}  # fmt: skip
# So many triples of small numbers say whether it matters which two of them are combined first.
_TRIALS = 256
_CHOICES = frozenset({"stablehlo.compare", "stablehlo.select", "stablehlo.and", "stablehlo.or"})


def reducer_of(region: Region) -> str:
    """Return `add`, `maximum`, … or `replace` if a region does that alone; empty otherwise."""
    *operations, last = [view.operation for view in region.block]
    first, second = list(region.block.arguments)[:2]
    if len(region.block.arguments) != 2 or len(last.operands) != 1:
        return ""
    if not operations:
        return "replace" if last.operands[0] == second else ""
    (operation,) = operations if len(operations) == 1 else [None]
    if operation is None or list(last.operands) != list(operation.results):
        return ""
    name = str(operation.name).removeprefix("stablehlo.")
    takes_both = list(operation.operands) in ([first, second], [second, first])
    return name if takes_both and name in IDENTITIES else ""


def identity_of(reducer: str, dtype: np.dtype[Any]) -> Array:
    """Return the identity element of a reducer."""
    kind = IDENTITIES[reducer]
    if kind in ("0", "1"):
        return np.array(int(kind)).astype(dtype)
    if dtype.kind == "b":
        return np.array(kind in ("all", "greatest"))
    if kind in ("all", "none"):
        return np.array(-(kind == "all")).astype(dtype)
    if np.zeros(0, dtype).dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return np.array(bounds.min if kind == "least" else bounds.max, dtype)
    return np.array(-np.inf if kind == "least" else np.inf).astype(dtype)


def is_identity(reducer: str, value: Value) -> bool:
    """Return whether a value is known to change nothing."""
    return value.scalar is not None and bool(value.scalar == identity_of(reducer, value.dtype))


def depends_on_order(region: Region, graph: Graph) -> bool:
    """Return whether it is known to matter which neighbours a region combines first.

    StableHLO leaves that open, so it should not; but XLA and its interpreter go from the first on.
    """
    kinds = region.arguments[: len(region.arguments) // 2]
    random = np.random.default_rng(0)
    triples = [[_small(random, kind.dtype) for kind in kinds] for _ in range(3)]
    first, second, third = (list(map(constant_array, arrays)) for arrays in triples)

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return region.apply(graph.trial(), [*left, *right])

    forward = combine(combine(first, second), third)
    backward = combine(first, combine(second, third))
    pairs = [(one.array, other.array) for one, other in zip(forward, backward, strict=True)]
    return not all(_alike(one, other) for one, other in pairs)


def _small(random: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Return numbers of which sums and products of three are exact."""
    least = 0 if dtype.kind in "bu" or dtype.name.startswith("uint") else -2
    return random.integers(least, 2 if dtype.kind == "b" else 4, _TRIALS).astype(dtype)


def _alike(one: Array | None, other: Array | None) -> bool:
    """Return whether two results are the same, up to how floats are rounded, or not known."""
    if one is None or other is None:
        return True
    if one.dtype.kind in "biu" or "int" in one.dtype.name:
        return bool((one == other).all())
    left, right = one.astype(np.float64), other.astype(np.float64)
    return bool(np.allclose(left, right, rtol=0.05, atol=0.05, equal_nan=True))


def orders_first(region: Region, graph: Graph) -> str:
    """Return `max` or `min` if a region keeps that one of two numbers, and its index.

    Of equal numbers it keeps the lower index, and NaN before all of them. A region that does
    nothing but compare and choose is known when it has been applied to numbers in every order.
    """
    names = {view.operation.name for view in region.block} - {"stablehlo.return", "func.return"}
    kinds = region.arguments
    if len(kinds) != 4 or not names <= _CHOICES or kinds[0].dtype.kind == "b":
        return ""
    floats = kinds[0].dtype.kind not in "iu"
    numbers: Sequence[float] = (-1, 0, 1, np.nan) if floats else (0, 1, 2)
    grid = np.meshgrid(numbers, (0, 1), numbers, (0, 1), indexing="ij")
    arrays = [part.reshape(-1).astype(kind.dtype) for part, kind in zip(grid, kinds, strict=True)]
    apart = arrays[1] != arrays[3]  # two elements never have one index
    # Which of two NaNs is kept depends on their order alone: the first one comes first.
    both_nan = (np.isnan(grid[0]) & np.isnan(grid[2])).reshape(-1)
    apart &= ~both_nan | (arrays[1] < arrays[3])
    arrays = [array[apart] for array in arrays]
    values = region.apply(graph.trial(), list(map(constant_array, arrays)))
    results = [value.array for value in values if value.array is not None]
    for name in ("max", "min") if len(results) == len(values) else ():
        chosen = _first(name, arrays)
        expected = [np.where(chosen, arrays[i], arrays[i + 2]) for i in (0, 1)]
        pairs = zip(results, expected, strict=True)
        if all(np.array_equal(one, other, equal_nan=floats) for one, other in pairs):
            return name
    return ""


def _first(name: str, arrays: Sequence[Array]) -> Array:
    """Return whether the first of two elements is to be kept."""
    left, index, right, other = (array.astype(np.float64) for array in arrays)
    nan_left, nan_right = np.isnan(left), np.isnan(right)
    before = left > right if name == "max" else left < right
    equal = (left == right) | (nan_left & nan_right)
    chosen: Array = (nan_left & ~nan_right) | (before & ~nan_right) | (equal & (index < other))
    return chosen
