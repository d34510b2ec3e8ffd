"""Sorts, and the greatest elements: TopK of integers in the order of the keys."""

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
from bridge.tf_operations.bits import in_total_order
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES


def _sort(graph: Graph, op: Operation) -> Sequence[Value]:
    axis = op.integer("dimension", -1) % op.operands[0].rank
    keys = sort_keys_of(op.regions[0].block)
    check_order(graph, op, keys, axis)
    values = [_last(graph, value, axis) for value in op.operands]
    if keys is None:
        places = _last(graph, pairwise_places(graph, op, axis), axis)
        order: Value | None = _top(graph, places, places.shape[-1], descending=False)
    else:
        order = _order_of_keys(graph, values, keys)
    if order is None:
        return op.operands
    return [_back(graph, _taken(graph, value, order), axis) for value in values]


def _last(graph: Graph, value: Value, axis: int) -> Value:
    """Return the value with a dimension as the last one."""
    others = [number for number in range(value.rank) if number != axis]
    return graph.expand(nodes.transpose(graph, graph.expand(value), [*others, axis]))


def _back(graph: Graph, value: Value, axis: int) -> Value:
    """Return the value with its last dimension where it was."""
    rank = value.rank
    order = [number - (number > axis) if number != axis else rank - 1 for number in range(rank)]
    return nodes.transpose(graph, value, order)


def _order_of_keys(graph: Graph, values: Sequence[Value], keys: Sequence[SortKey]) -> Value | None:
    """Return the indices of the elements in the order of all keys."""
    order: Value | None = None
    for key in reversed(keys):
        for part in _parts(graph, values[key.operand]):
            value = part if order is None else _taken(graph, part, order)
            place = _order(graph, value, key, value.shape[-1])
            order = place if order is None else _taken(graph, order, place)
    return order


def _parts(graph: Graph, value: Value) -> list[Value]:
    """Return what is compared last and first: of complex numbers imaginary and real parts."""
    if value.dtype.kind != "c":
        return [value]
    kind = np.dtype(f"f{value.dtype.itemsize // 2}")
    return [graph.node(name, [value], shape=value.shape, dtype=kind) for name in ("Imag", "Real")]


def _order(graph: Graph, value: Value, key: SortKey, count: Dim) -> Value:
    """Return the indices of the first elements in the order of one key."""
    comparable = graph.expand(_comparable(graph, value, key))
    return _top(graph, comparable, count, descending=key.descending)


def _comparable(graph: Graph, value: Value, key: SortKey) -> Value:
    """Return integers in the order of the key."""
    if value.dtype == bool:
        return nodes.cast(graph, value, np.uint8)
    if not value.is_float:
        return value
    do = partial(nodes.elementwise, graph)
    if not key.signed_zeros:
        value = nodes.where(graph, do("Equal", value, 0), 0, value)
    if not key.signed_nans:
        value = nodes.where(graph, do("IsNaN", value), np.nan, value)
    return in_total_order(graph, value)


def _top(graph: Graph, value: Value, count: Dim, *, descending: bool) -> Value:
    """Return where the greatest or least integers are, of equal ones the first one first."""
    if not descending:
        value = graph.expand(nodes.elementwise(graph, "BitwiseNot", value))
    shape = (*value.shape[:-1], count)
    results = [(shape, value.dtype), (shape, np.dtype(np.int32))]
    size = nodes.cast(graph, nodes.reshape(graph, graph.size(count), ()), np.int32)
    return graph.nodes_of("TopK", [value, graph.expand(size)], results)[1]


def _taken(graph: Graph, value: Value, order: Value) -> Value:
    """Return elements of the last dimension in an order."""
    inputs = [graph.expand(value), graph.expand(order)]
    return graph.node("GatherElements", inputs, shape=order.shape, axis=order.rank - 1)


def top_k(graph: Graph, op: Operation) -> Sequence[Value] | None:
    """The composite `chlo.top_k` and its like: the greatest elements of the last dimension, where.

    0 is greater than -0, NaN greater than all numbers, and -NaN less than all of them.
    """
    options = top_k_options(op)
    return None if options is None else _greatest(graph, op, options[0], descending=options[1])


def _known_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    results = top_k(graph, op)
    if results is None:
        op.refuse("it has options that this converter does not know")
    return results


def _dynamic_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    (count,) = op.sizes(graph, 1)
    return _greatest(graph, op, count, descending=True)


def _greatest(graph: Graph, op: Operation, count: Dim, *, descending: bool) -> Sequence[Value]:
    value = graph.expand(op.operands[0])
    is_float = value.is_float
    key = SortKey(0, descending=descending, signed_zeros=is_float, signed_nans=is_float)
    order = _order(graph, value, key, count)
    return [_taken(graph, value, order), nodes.cast(graph, order, op.results[1].dtype)]


def _approx_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    """The custom call `ApproxTopK`: the greatest or least elements, which are found exactly."""
    axis = reduction_setting(op, "reduction_dim")
    count = op.results[0].shape[axis]
    direction = comparison_of(op)
    if count is None or direction not in ("GT", "LT") or len(op.operands) != 4:
        op.refuse("its size or its comparator is not supported")
    key = SortKey(0, descending=direction == "GT", signed_zeros=False)
    values = [_last(graph, value, axis) for value in op.operands[:2]]
    order = _order(graph, values[0], key, count)
    return [_back(graph, _taken(graph, value, order), axis) for value in values]


RULES = {"stablehlo.sort": Rule(_sort, ("dimension", "is_stable"), expand=False)}
CUSTOM_CALLS = {
    "ApproxTopK": Rule(_approx_top_k, CUSTOM_CALL_ATTRIBUTES),
    "mhlo.topk": Rule(_known_top_k, CUSTOM_CALL_ATTRIBUTES),
    "stablehlo.dynamic_top_k": Rule(_dynamic_top_k, CUSTOM_CALL_ATTRIBUTES, expand=False),
}
