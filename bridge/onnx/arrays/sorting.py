"""Sorts, and the greatest elements: TopK, which keeps the order of equal elements.

What comes before what is said by a region. It is applied to two numbers in every order, and where
it does what a list of keys does, the keys are sorted one after another, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from bridge.core_ops.regions import trial_of
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.arithmetic.bits import in_total_order
from bridge.onnx.graph.graph_builder import Graph
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of

__all__ = ["RULES", "approx_top_k", "dynamic_top_k", "top_k"]


def _sort(graph: Graph, op: Operation) -> Sequence[Value]:
    values, axis = op.operands, op.integer("dimension", -1) % op.operands[0].rank
    keys = sort_keys_of(op.regions[0].block, trial_of(op.regions[0], graph))
    compared = {key.operand for key in keys or ()}
    shows = len(values) > 1 or values[0].is_float  # integers that are equal are the same
    if shows and len(compared) < len(values) and not op.flag("is_stable"):
        op.refuse(
            "it is unstable, so the order of elements with equal keys is undefined",
            "sort with is_stable=True (stable=True in jax.numpy)",
        )
    if keys is None:
        places = _pairwise_order(graph, op, axis)
        return [_along(graph, value, places, axis) for value in values]
    order: Value | None = None
    for key in reversed(keys):
        value = values[key.operand]
        if order is not None:
            value = _along(graph, value, order, axis)
        place = _order(graph, value, key, axis, value.shape[axis])
        order = place if order is None else _along(graph, order, place, axis)
    if order is None:
        return values
    return [_along(graph, value, order, axis) for value in values]


def _along(graph: Graph, value: Value, order: Value, axis: int) -> Value:
    value = graph.expand(value)
    return graph.node("GatherElements", [value, order], shape=order.shape, axis=axis)


def _order(graph: Graph, value: Value, key: SortKey, axis: int, count: Dim) -> Value:
    """Return the indices of the first elements in the order of one key."""
    if key.signed_nans and (ordered := in_total_order(graph, value)) is not None:
        return _top(graph, ordered, axis, count, descending=key.descending)
    if value.dtype == np.float64:
        return _order_of_doubles(graph, value, key, axis, count)
    return _top(graph, _comparable(graph, value, key), axis, count, descending=key.descending)


def _comparable(graph: Graph, value: Value, key: SortKey) -> Value:
    """Return integers or finite numbers in the same order, which the runtime compares."""
    if value.dtype == bool:
        return nodes.cast(graph, value, np.uint8)
    if value.dtype == np.uint64:
        return nodes.cast(graph, nodes.elementwise(graph, "BitwiseXor", value, 1 << 63), np.int64)
    if not value.is_float:
        return value
    do = partial(nodes.elementwise, graph)
    wide = nodes.cast(graph, value, np.float64)
    wide = nodes.where(graph, do("Equal", wide, np.inf), 1e300, wide)
    if key.signed_zeros:
        wide = nodes.where(graph, do("Less", do("Reciprocal", wide), -1e300), -1e-300, wide)
    return nodes.where(graph, do("IsNaN", value), np.inf, wide)


def _order_of_doubles(graph: Graph, value: Value, key: SortKey, axis: int, count: Dim) -> Value:
    """Return the order of float64: no float is wider, so NaNs and zeros are ordered before."""
    do = partial(nodes.elementwise, graph)
    is_nan = do("IsNaN", value)
    rank = nodes.cast(graph, is_nan, np.uint8)
    if key.signed_zeros:
        below = do("Less", do("Reciprocal", value), 0)
        minus = do("And", do("Equal", value, 0), below)
        rank = nodes.where(graph, is_nan, 2, nodes.where(graph, minus, rank, 1))
    size = value.shape[axis]
    first = _top(graph, rank, axis, size, descending=key.descending)
    numbers = _along(graph, nodes.where(graph, is_nan, np.inf, value), first, axis)
    second = _top(graph, numbers, axis, count, descending=key.descending)
    return _along(graph, first, second, axis)


def _top(graph: Graph, value: Value, axis: int, count: Dim, *, descending: bool) -> Value:
    value = graph.expand(value)
    shape = tuple(count if number == axis else dim for number, dim in enumerate(value.shape))
    results = [(shape, value.dtype), (shape, np.dtype(np.int64))]
    size = graph.size(count)
    return graph.nodes_of("TopK", [value, size], results, axis=axis, largest=int(descending))[1]


def top_k(graph: Graph, op: Operation) -> Sequence[Value] | None:
    """The composite `chlo.top_k` and its like: the greatest elements of the last dimension, where.

    0 is greater than -0, NaN greater than all numbers, and -NaN less than all of them. Of equal
    elements the first comes first, whether or not that is asked for.
    """
    settings = op.text("composite_attributes") or op.text("mhlo.attributes")
    options = dict(part.strip("{} ").split(" = ") for part in settings.split(","))
    if (
        options.keys() - {"is_stable", "k", "largest"}
        or len(op.operands) != 1
        or "k" not in options
    ):
        return None
    descending = options.get("largest", "true").startswith("true")
    return _greatest(graph, op, int(options["k"].split(":")[0]), descending=descending)


def dynamic_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    """The same, which JAX has as a custom call where it is computed how many they are."""
    (count,) = op.sizes(graph, 1)
    return _greatest(graph, op, count, descending=True)


def _greatest(graph: Graph, op: Operation, count: Dim, *, descending: bool) -> Sequence[Value]:
    value = graph.expand(op.operands[0])
    is_float = value.is_float
    key = SortKey(0, descending=descending, signed_zeros=is_float, signed_nans=is_float)
    order = _order(graph, value, key, value.rank - 1, count)
    taken = _along(graph, value, order, value.rank - 1)
    return [taken, nodes.cast(graph, order, op.results[1].dtype)]


def approx_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    """The custom call `ApproxTopK`: the greatest or least elements, which are found exactly."""
    values, axis = op.operands[:2], _setting(op, "reduction_dim")
    count = op.results[0].shape[axis]
    direction = _comparison_of(op)
    if count is None or direction not in ("GT", "LT") or len(op.operands) != 4:
        op.refuse("its size or its comparator is not supported")
    key = SortKey(0, descending=direction == "GT", signed_zeros=False)
    order = _order(graph, graph.expand(values[0]), key, axis, count)
    return [_along(graph, value, order, axis) for value in values]


def _setting(op: Operation, name: str) -> int:
    config = op.text("mhlo.backend_config") or op.text("backend_config")
    return int(config.partition(f"{name} = ")[2].split(" ")[0])


def _comparison_of(op: Operation) -> str:
    """The direction of the only comparison in the function that a custom call names."""
    body = op.regions[0].block
    comparisons = [v.operation for v in body if v.operation.name == "stablehlo.compare"]
    arguments = list(body.arguments)[:2]
    if len(comparisons) != 1 or list(comparisons[0].operands) != arguments:
        return ""
    return comparison_direction(comparisons[0])


# All elements are compared with all others, so that many are a hundred million comparisons.
_MAX_ELEMENTS = 10_000


def _pairwise_order(graph: Graph, op: Operation, axis: int) -> Value:
    """Return the index of the element for each place of a stable sort along a dimension.

    Raises:
        UnsupportedError: there are too many elements to compare all of them.
    """
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
    places = _count_before(graph, precedes, axis, shape)
    ends = [(shape, np.dtype(np.int64))] * 2
    return graph.nodes_of("TopK", [places, graph.size(size)], ends, axis=axis, largest=0)[1]


def _compare_pairs(
    graph: Graph, op: Operation, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    pairs = [value for pair in zip(left, right, strict=True) for value in pair]
    (before,) = op.regions[0].apply(graph, pairs)
    return before.broadcast_to(left[0].shape)


def _count_before(graph: Graph, flags: Value, axis: int, shape: tuple[Dim, ...]) -> Value:
    """Return the number of elements that come before each element."""
    numbers = graph.expand(nodes.cast(graph, flags, np.float32))  # exact, up to 2**24 of them
    total = graph.node("ReduceSum", [numbers, graph.vector([axis])], shape=shape, keepdims=0)
    return nodes.cast(graph, total, np.int64)


RULES = {
    "stablehlo.sort": Rule(_sort, ("dimension", "is_stable")),
}
