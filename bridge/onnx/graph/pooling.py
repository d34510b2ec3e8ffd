"""MaxPool, where ONNX Runtime's computes the same as a reduction of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops.windows import count_windows
from bridge.graphs import layouts, nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim

_RANKS = (3, 4, 5)  # of images of one to three dimensions
_BEFORE = 2  # batch and features

Row = tuple[int, int, int, int]  # size, stride and padding along a dimension


def max_pool(graph: TensorGraph, value: Value, rows: Sequence[Row]) -> Value | None:
    """The greatest of each window by MaxPool; None where it would compute something else.

    Behind a Relu, as in most networks, there is no -inf, and no sum of what a window has is NaN
    unless one of them is: so where the average is NaN, the maximum is as well.
    """
    value = graph.expand(value)
    fact = layouts.transposition_of(graph, value)
    inner, order = (value, tuple(range(value.rank))) if fact is None else (fact.value, fact.order)
    source = graph.producer(inner)
    is_rectified = source is not None and source.op_type == "Relu"
    if value.dtype != np.float32 or value.rank not in _RANKS:
        return None
    if graph.exact and not is_rectified:
        return None
    back = [order.index(axis) for axis in range(value.rank)]
    before, spatial = ([rows[axis] for axis in part] for part in (back[:_BEFORE], back[_BEFORE:]))
    if set(before) != {(1, 1, 0, 0)} or not _are_pools(spatial, inner.shape[_BEFORE:]):
        return None
    made = _pool(graph, inner, spatial)
    return made if fact is None else layouts.transpose(graph, made, order)


def _are_pools(rows: Sequence[Row], shape: Sequence[Dim]) -> bool:
    """Return whether every window has an element, and there is a window."""
    if all(size == 1 for size, *_ in rows):
        return False
    return all(
        min(low, high) >= 0 and max(low, high) < size and dim != 0 and _count(row, dim) != 0
        for row, dim in zip(rows, shape, strict=True)
        for size, _, low, high in [row]
    )


def _count(row: Row, dim: Dim) -> Dim:
    size, stride, low, high = row
    return count_windows(dim + low + high, size, stride)


def _pool(graph: TensorGraph, value: Value, rows: Sequence[Row]) -> Value:
    sizes, strides, low, high = (list(numbers) for numbers in zip(*rows, strict=True))
    pairs = zip(rows, value.shape[_BEFORE:], strict=True)
    shape = [*value.shape[:_BEFORE], *(_count(row, dim) for row, dim in pairs)]
    moves: dict[str, Any] = {"kernel_shape": sizes, "strides": strides, "pads": [*low, *high]}
    most = graph.node("MaxPool", [value], shape=shape, **moves)
    if not graph.exact:
        return most
    # With the padding counted, since ONNX's reference evaluator passes over NaNs otherwise.
    mean = graph.node("AveragePool", [value], shape=shape, count_include_pad=1, **moves)
    is_nan = nodes.elementwise(graph, "IsNaN", mean)
    return nodes.where(graph, is_nan, mean, most)
