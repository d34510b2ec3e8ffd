"""Sorts, and the greatest elements: TopK, which keeps the order of equal elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.sort_comparators import Sorts
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.rules.bits import in_total_order
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.sort_keys import SortKey


def _along(graph: Graph, value: Value, order: Value, axis: int) -> Value:
    value = graph.expand(value)
    return graph.node("GatherElements", [value, order], shape=order.shape, axis=axis)


def _first(graph: Graph, value: Value, key: SortKey, axis: int, count: Dim) -> Value:
    """Return the indices of the first elements in the order of one key."""
    if not graph.exact and value.is_float:
        return _top(graph, value, axis, count, descending=key.descending)
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


SORTS = Sorts(first=_first, along=_along)
RULES = SORTS.rules()
