"""Sorts, and the greatest elements: TopK of integers in the order of the keys."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.sort_comparators import Sorts
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.bits import in_total_order
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.sort_keys import SortKey


def _last(graph: Graph, value: Value, axis: int) -> Value:
    """Return the value with a dimension as the last one."""
    others = [number for number in range(value.rank) if number != axis]
    return graph.expand(nodes.transpose(graph, graph.expand(value), [*others, axis]))


def _back(graph: Graph, value: Value, axis: int) -> Value:
    """Return the value with its last dimension where it was."""
    rank = value.rank
    order = [number - (number > axis) if number != axis else rank - 1 for number in range(rank)]
    return nodes.transpose(graph, value, order)


def _parts(graph: Graph, value: Value) -> list[Value]:
    """Return what is compared last and first: of complex numbers imaginary and real parts."""
    if value.dtype.kind != "c":
        return [value]
    value, kind = graph.expand(value), np.dtype(f"f{value.dtype.itemsize // 2}")
    return [graph.node(name, [value], shape=value.shape, dtype=kind) for name in ("Imag", "Real")]


def _first(graph: Graph, value: Value, key: SortKey, axis: int, count: Dim) -> Value:
    """Return the indices of the first elements in the order of one key."""
    comparable = graph.expand(_comparable(graph, _last(graph, value, axis), key))
    return _back(graph, _top(graph, comparable, count, descending=key.descending), axis)


def _comparable(graph: Graph, value: Value, key: SortKey) -> Value:
    """Return numbers in the order of the key, of which NaN and the signs of zeros have a place."""
    if value.dtype == bool:
        return nodes.cast(graph, value, np.uint8)
    if not (value.is_float and graph.exact):
        return value
    do = partial(nodes.elementwise, graph)
    if not key.signed_zeros:
        value = nodes.where(graph, do("Equal", value, 0), 0, value)
    if not key.signed_nans:
        value = nodes.where(graph, do("IsNaN", value), np.nan, value)
    return in_total_order(graph, value)


def _top(graph: Graph, value: Value, count: Dim, *, descending: bool) -> Value:
    """Return where the greatest or least numbers are, of equal ones the first one first."""
    if not descending:
        opposite = "Neg" if value.is_float else "BitwiseNot"
        value = graph.expand(nodes.elementwise(graph, opposite, value))
    shape = (*value.shape[:-1], count)
    results = [(shape, value.dtype), (shape, np.dtype(np.int32))]
    size = nodes.cast(graph, nodes.reshape(graph, graph.size(count), ()), np.int32)
    return graph.nodes_of("TopK", [value, graph.expand(size)], results)[1]


def _along(graph: Graph, value: Value, order: Value, axis: int) -> Value:
    """Return elements along a dimension in an order."""
    inputs = [_last(graph, value, axis), _last(graph, order, axis)]
    taken = graph.node("GatherElements", inputs, shape=inputs[1].shape, axis=order.rank - 1)
    return _back(graph, taken, axis)


SORTS = Sorts(first=_first, along=_along, parts=_parts)
RULES = SORTS.rules()
