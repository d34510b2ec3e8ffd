"""MaxPool, where it computes what XLA does.

ONNX Runtime's loses NaNs and takes the lowest finite number for -inf. Behind a Relu, as in most
networks, there is no -inf, and no sum of what a window has is NaN unless one of them is: so where
the average is NaN, the maximum is as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core.size_polynomials import Dim, floordiv, is_static, numbers_of
from bridge.onnx.graph import layouts, nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.values import Value

__all__ = ["max_pool"]

_RANKS = (3, 4, 5)  # of images of one to three dimensions
_BEFORE = 2  # batch and features


def max_pool(
    graph: Graph,
    value: Value,
    *,
    sizes: Sequence[int],
    strides: Sequence[int],
    low: Sequence[Dim],
    high: Sequence[Dim],
) -> Value | None:
    """The greatest of each window; None where the runtime would compute something else.

    Args:
        graph: the graph that the operations are added to.
        value: the value.
        sizes: the size of the windows along each dimension.
        strides: the distance from one window to the next.
        low: the number of elements before each dimension, which do not count.
        high: the number behind it.
    """
    value = graph.expand(value)
    fact = layouts.transposition_of(graph, value)
    inner, order = (value, tuple(range(value.rank))) if fact is None else (fact.value, fact.order)
    source = graph.producer(inner)
    is_rectified = source is not None and source.op_type == "Relu" and value.dtype == np.float32
    if not is_rectified or value.rank not in _RANKS or not is_static((*low, *high)):
        return None
    back = [order.index(axis) for axis in range(value.rank)]
    rows = list(zip(sizes, strides, numbers_of(low), numbers_of(high), strict=True))
    before, spatial = ([rows[axis] for axis in part] for part in (back[:_BEFORE], back[_BEFORE:]))
    if set(before) != {(1, 1, 0, 0)} or not _are_pools(spatial, inner.shape[_BEFORE:]):
        return None
    made = _nodes(graph, inner, spatial)
    return made if fact is None else layouts.transpose(graph, made, order)


def _are_pools(rows: Sequence[tuple[int, int, int, int]], shape: Sequence[Dim]) -> bool:
    """Return whether every window has an element, and there is a window."""
    if all(size == 1 for size, *_ in rows):
        return False
    return all(
        min(low, high) >= 0 and max(low, high) < size and dim != 0 and _count(row, dim) != 0
        for row, dim in zip(rows, shape, strict=True)
        for size, _, low, high in [row]
    )


def _count(row: tuple[int, int, int, int], dim: Dim) -> Dim:
    """Return the number of windows along a dimension."""
    size, stride, low, high = row
    count = floordiv(dim + low + high - size, stride) + 1
    return max(count, 0) if isinstance(count, int) else count


def _nodes(graph: Graph, value: Value, rows: Sequence[tuple[int, int, int, int]]) -> Value:
    sizes, strides, low, high = (list(numbers) for numbers in zip(*rows, strict=True))
    pairs = zip(rows, value.shape[_BEFORE:], strict=True)
    shape = [*value.shape[:_BEFORE], *(_count(row, dim) for row, dim in pairs)]
    moves: dict[str, Any] = {"kernel_shape": sizes, "strides": strides, "pads": [*low, *high]}
    most = graph.node("MaxPool", [value], shape=shape, **moves)
    # With the padding counted, since ONNX's reference evaluator passes over NaNs otherwise.
    mean = graph.node("AveragePool", [value], shape=shape, count_include_pad=1, **moves)
    is_nan = nodes.elementwise(graph, "IsNaN", mean)
    return nodes.where(graph, is_nan, mean, most)
