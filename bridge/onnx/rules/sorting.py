"""Sorts, and the greatest elements: TopK, which keeps the order of equal elements.

What comes before what is said by a region. It is applied to two numbers in every order, and where
it does what a list of keys does, the keys are sorted one after another, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from bridge.core_ops.sort_comparators import (
    check_order,
    comparison_of,
    pairwise_places,
    reduction_setting,
    top_k_options,
)
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.rules.bits import in_total_order
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of


def _sort(graph: Graph, op: Operation) -> Sequence[Value]:
    values, axis = op.operands, op.integer("dimension", -1) % op.operands[0].rank
    keys = sort_keys_of(op.regions[0].block)
    check_order(graph, op, keys, axis)
    if keys is None:
        places = _top(
            graph, pairwise_places(graph, op, axis), axis, values[0].shape[axis], descending=False
        )
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
    options = top_k_options(op)
    return None if options is None else _greatest(graph, op, options[0], descending=options[1])


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
    values, axis = op.operands[:2], reduction_setting(op, "reduction_dim")
    count = op.results[0].shape[axis]
    direction = comparison_of(op)
    if count is None or direction not in ("GT", "LT") or len(op.operands) != 4:
        op.refuse("its size or its comparator is not supported")
    key = SortKey(0, descending=direction == "GT", signed_zeros=False)
    order = _order(graph, graph.expand(values[0]), key, axis, count)
    return [_along(graph, value, order, axis) for value in values]


RULES = {
    "stablehlo.sort": Rule(_sort, ("dimension", "is_stable"), expand=False),
}
