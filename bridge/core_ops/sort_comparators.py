"""What sorts and searches of the greatest elements say, and sorts by any comparator.

What comes before what is said by a region. It is applied to two numbers in every order, and where
it does what a list of keys does, the keys are sorted one after another, the last one first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core_ops.regions import is_counting
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.folding import ELEMENTWISE, OF_NUMBERS
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class Sorts:
    """The sorts of a target, and its searches of the greatest elements.

    Attributes:
        first: the function from a value, a key, a dimension and a number to the indices of so many
            elements along the dimension, the first ones in the order of the key.
        along: the function from a value, such indices and the dimension to these elements.
        parts: the function from a value to what is compared last and first of it.
    """

    first: Callable[[Any, Value, SortKey, int, Dim], Value]
    along: Callable[[Any, Value, Value, int], Value]
    parts: Callable[[Any, Value], Sequence[Value]] = lambda _, value: [value]

    def rules(self) -> dict[str, Rule]:
        """Return the rule of `stablehlo.sort`."""
        return {"stablehlo.sort": Rule(self._sort, ("dimension", "is_stable"), expand=False)}

    def custom_calls(self) -> Mapping[str, Rule]:
        """Return the rules of custom calls that search the greatest elements."""
        return {
            "ApproxTopK": Rule(self._approx_top_k, CUSTOM_CALL_ATTRIBUTES),
            "mhlo.topk": Rule(self._known_top_k, CUSTOM_CALL_ATTRIBUTES),
            "stablehlo.dynamic_top_k": Rule(
                self._dynamic_top_k, CUSTOM_CALL_ATTRIBUTES, expand=False
            ),
        }

    def top_k(self, graph: Any, op: Operation) -> Sequence[Value] | None:
        """The composite `chlo.top_k` and its like: the greatest elements of the last dimension.

        0 is greater than -0, NaN greater than all numbers, and -NaN less than all of them. Of equal
        elements the first comes first, whether or not that is asked for.
        """
        options = _top_k_options(op)
        if options is None:
            return None
        return self._greatest(graph, op, options[0], descending=options[1])

    def _known_top_k(self, graph: Any, op: Operation) -> Sequence[Value]:
        results = self.top_k(graph, op)
        if results is None:
            op.refuse("it has options that this converter does not know")
        return results

    def _dynamic_top_k(self, graph: Any, op: Operation) -> Sequence[Value]:
        (count,) = op.sizes(graph, 1)
        return self._greatest(graph, op, count, descending=True)

    def _greatest(
        self, graph: Any, op: Operation, count: Dim, *, descending: bool
    ) -> Sequence[Value]:
        value = graph.expand(op.operands[0])
        is_float, last = value.is_float, value.rank - 1
        key = SortKey(0, descending=descending, signed_zeros=is_float, signed_nans=is_float)
        order = self.first(graph, value, key, last, count)
        taken = self.along(graph, value, order, last)
        return [taken, nodes.cast(graph, order, op.results[1].dtype)]

    def _approx_top_k(self, graph: Any, op: Operation) -> Sequence[Value]:
        """Return the greatest or least elements, which are found exactly."""
        axis = _reduction_dim(op)
        count = op.results[0].shape[axis]
        direction = _comparison_of(op)
        # The shapes of the results stand behind where they are symbolic.
        has_shapes = "indices_of_shape_operands" in op.raw.attributes
        given = len(op.operands) - len(op.results) * has_shapes
        if count is None or direction not in ("GT", "LT") or given != 4:
            op.refuse("its size or its comparator is not supported")
        key = SortKey(0, descending=direction == "GT", signed_zeros=False)
        order = self.first(graph, graph.expand(op.operands[0]), key, axis, count)
        return [self.along(graph, value, order, axis) for value in op.operands[:2]]

    def _sort(self, graph: Any, op: Operation) -> Sequence[Value]:
        values, axis = op.operands, op.integer("dimension", -1) % op.operands[0].rank
        size = values[0].shape[axis]
        keys = sort_keys_of(op.regions[0].block)
        _check_order(graph, op, keys, axis)
        order: Value | None = None
        if keys is None:
            places, ascending = (
                _pairwise_places(graph, op, axis),
                SortKey(0, descending=False, signed_zeros=False),
            )
            order = self.first(graph, places, ascending, axis, size)
        for key in reversed(keys or ()):
            for part in self.parts(graph, values[key.operand]):
                value = part if order is None else self.along(graph, part, order, axis)
                place = self.first(graph, value, key, axis, size)
                order = place if order is None else self.along(graph, order, place, axis)
        return values if order is None else [self.along(graph, v, order, axis) for v in values]


def _top_k_options(op: Operation) -> tuple[int, bool] | None:
    """Return how many elements a `top_k` has, and whether they are the greatest ones.

    None where it has options that are none of its own.
    """
    settings = op.text("composite_attributes") or op.text("mhlo.attributes")
    options = dict(part.strip("{} ").split(" = ") for part in settings.split(","))
    if (
        options.keys() - {"is_stable", "k", "largest"}
        or len(op.operands) != 1
        or "k" not in options
    ):
        return None
    return int(options["k"].split(":")[0]), options.get("largest", "true").startswith("true")


def _reduction_dim(op: Operation) -> int:
    config = op.text("mhlo.backend_config") or op.text("backend_config")
    return int(config.partition("reduction_dim = ")[2].split(" ")[0])


def _comparison_of(op: Operation) -> str:
    """The direction of the only comparison in the function that a custom call names."""
    body = op.regions[0].block
    comparisons = [v.operation for v in body if v.operation.name == "stablehlo.compare"]
    arguments = list(body.arguments)[:2]
    if len(comparisons) != 1 or list(comparisons[0].operands) != arguments:
        return ""
    return comparison_direction(comparisons[0])


_OF_ELEMENTS = frozenset({*ELEMENTWISE, *OF_NUMBERS, "Abs", "Cast", "Identity", "Neg", "Where"})
# Up to how many operations are looked through for what a value follows from.
_MAX_OPERATIONS = 100


def _check_order(
    graph: TensorGraph, op: Operation, keys: Sequence[SortKey] | None, axis: int
) -> None:
    """Refuse an unstable sort of which the order of elements with equal keys shows.

    It does not where all operands are compared, or follow from what is compared. Numbers of the
    places, by which JAX takes the gradient of a sort apart, say which of equal elements came first:
    any is right, and the first one is taken.
    """
    compared = {key.operand for key in keys or ()}
    others = [value for n, value in enumerate(op.operands) if n not in compared]
    if op.flag("is_stable") or (len(op.operands) == 1 and not op.operands[0].is_float):
        return  # integers that are equal are the same
    names = {graph.reference(op.operands[number]) for number in compared}
    if any(
        value.scalar is None
        and not is_counting(graph, value, axis)
        and not _follows_from(graph, value, names)
        for value in others
    ):
        op.refuse(
            "it is unstable, so the order of elements with equal keys is undefined",
            "sort with is_stable=True (stable=True in jax.numpy)",
        )


def _follows_from(graph: TensorGraph, value: Value, names: set[str]) -> bool:
    """Return whether elements are computed of the elements of values at the same place alone."""
    pending, seen = [graph.reference(value)], set(names)
    while pending:
        name = pending.pop()
        array, node = graph.constant(name), graph.source(name)
        if name in seen or (array is not None and array.size == 1):
            continue
        if node is None or node.op_type not in _OF_ELEMENTS or len(seen) > _MAX_OPERATIONS:
            return False
        seen.add(name)
        pending += node.inputs
    return bool(names)


# All elements are compared with all others, so that many are a hundred million comparisons.
_MAX_ELEMENTS = 10_000


def _pairwise_places(graph: TensorGraph, op: Operation, axis: int) -> Value:
    """Return for each element how many come before it in a stable sort along a dimension."""
    values = [graph.expand(value) for value in op.operands]
    shape, rank = values[0].shape, values[0].rank
    size = shape[axis]
    if isinstance(size, int) and size > _MAX_ELEMENTS:
        op.refuse(
            f"its comparator is not the order of one operand after another, and {size} elements "
            "are too many to compare each with each",
            "sort by keys, as jax.lax.sort does",
        )
    square = (*shape[:axis], size, size, *shape[axis + 1 :])
    after = [number for number in range(rank + 1) if number != axis]  # the other one comes first
    before = [number for number in range(rank + 1) if number != axis + 1]
    own = [graph.expand(nodes.broadcast_in_dim(graph, value, after, square)) for value in values]
    other = [graph.expand(nodes.broadcast_in_dim(graph, value, before, square)) for value in values]
    first = _compare_pairs(graph, op, other, own)
    tie = nodes.elementwise(graph, "Equal", first, _compare_pairs(graph, op, own, other))
    line = nodes.count_up(graph, size)
    indices = [nodes.broadcast_in_dim(graph, line, [n], square) for n in (axis, axis + 1)]
    earlier, later = (nodes.elementwise(graph, name, *indices) for name in ("Less", "Greater"))
    # XLA, and StableHLO's interpreter, turn around what a comparator says to be before each other.
    precedes = nodes.where(graph, tie, nodes.where(graph, first, later, earlier), first)
    return _count_before(graph, precedes, axis, shape)


def _compare_pairs(
    graph: TensorGraph, op: Operation, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    pairs = [value for pair in zip(left, right, strict=True) for value in pair]
    (before,) = op.regions[0].apply(graph, pairs)
    return before.broadcast_to(left[0].shape)


def _count_before(graph: TensorGraph, flags: Value, axis: int, shape: tuple[Dim, ...]) -> Value:
    """Return the number of elements that come before each element."""
    numbers = graph.expand(nodes.cast(graph, flags, np.float32))  # exact, up to 2**24 of them
    total = graph.node("ReduceSum", [numbers, graph.vector([axis])], shape=shape, keepdims=0)
    return nodes.cast(graph, total, np.int64)
