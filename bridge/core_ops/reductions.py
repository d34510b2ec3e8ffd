"""Reductions along dimensions, by what a target has of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.core_ops.regions import (
    is_counting,
    is_identity,
    may_be_empty,
    reduce_by_region,
    reducer_of,
    shape_without,
)
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import product
from xla_call_module.stablehlo.combiners import extreme_and_place_of

_COMBINING: Mapping[str, str] = {
    "add": "Add", "and": "And", "maximum": "Max", "minimum": "Min", "multiply": "Mul", "or": "Or",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reductions:
    """The reductions of a target; any other is computed by its region.

    Attributes:
        reducer: the function from the operation that a region is, such as `add`, and a value, to
            the one that the target reduces by in its place; empty where it has none.
        along: the function that reduces a value by an operation along some dimensions.
        extreme_and_place: the function that returns the first greatest or least number (`max` or
            `min`) along a dimension, and its place, of a value and the numbers of its places.
        without_places: the dtypes of which it finds none.
    """

    reducer: Callable[[str, Value], str]
    along: Callable[[Any, str, Value, Sequence[int]], Value]
    extreme_and_place: Callable[[Any, str, Sequence[Value], int], Sequence[Value]]
    without_places: frozenset[str] = frozenset()

    def rules(self) -> dict[str, Rule]:
        """Return the rule of `stablehlo.reduce`."""
        return {"stablehlo.reduce": Rule(self._reduce, ("dimensions",), expand=False)}

    def _reduce(self, graph: Any, op: Operation) -> Sequence[Value]:
        count = len(op.operands) // 2
        values, starts = op.operands[:count], op.operands[count:]
        axes, (region,) = op.integers("dimensions"), op.regions
        if product(values[0].shape[axis] for axis in axes) == 0:
            shape = shape_without(values[0].shape, axes)
            return [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
        reducer = self.reducer(reducer_of(region), values[0]) if count == 1 else ""
        if reducer:
            result = self.along(graph, reducer, values[0], axes)
            if is_identity(reducer, starts[0]):
                return [result]
            return [nodes.elementwise(graph, _COMBINING[reducer], result, starts[0])]
        if count == 2 and len(axes) == 1 and self._may_find_places(graph, values, axes):
            order = extreme_and_place_of(region.block)
            least = "maximum" if order == "max" else "minimum"
            if order and is_identity(least, starts[0]) and starts[1].scalar == 0:
                return self.extreme_and_place(graph, order, values, axes[0])
        return reduce_by_region(graph, region, values, starts, axes)

    def _may_find_places(self, graph: Any, values: Sequence[Value], axes: Sequence[int]) -> bool:
        value, places = values
        is_known = value.dtype.name not in self.without_places and not may_be_empty(value, axes)
        return is_known and is_counting(graph, places, axes[0])
