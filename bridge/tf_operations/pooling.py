"""Reductions of windows by pools, where TensorFlow's compute the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops.windows import WindowSum, count_windows
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim

__all__ = ["fuse_mean_of_windows", "pooled"]

_RANK = 4
Row = tuple[int, int, int, int]


def pooled(graph: TensorGraph, reducer: str, value: Value, rows: Sequence[Row]) -> Value | None:
    """Return the reduction of windows of images by a pool; None where it would differ.

    MaxPool passes over NaN, and takes the lowest finite number for -inf: it is used behind a Relu,
    where only NaN is left to be looked for.
    """
    source = graph.producer(value)
    is_rectified = source is not None and source.op_type == "Relu"
    if reducer != "maximum" or value.rank != _RANK or not is_rectified:
        return None
    if rows[0] != (1, 1, 0, 0) or rows[3] != (1, 1, 0, 0) or not _fits(rows, value):
        return None
    value = graph.expand(value)
    most = _pool(graph, "MaxPool", value, rows)
    if any(low or high for *_, low, high in rows):  # AvgPool has no such padding
        is_nan = nodes.cast(graph, nodes.elementwise(graph, "IsNaN", value), np.float32)
        any_nan = _pool(graph, "MaxPool", graph.expand(is_nan), rows)
        found = nodes.elementwise(graph, "Greater", any_nan, 0)
    else:  # of what is not negative a sum is NaN only where an element is
        mean = _pool(graph, "AvgPool", value, rows)
        found = nodes.elementwise(graph, "IsNaN", mean)
    return nodes.where(graph, found, np.nan, most)


def fuse_mean_of_windows(graph: TensorGraph, dividend: Value, divisor: Value) -> Value | None:
    """Return AvgPool for sums of windows by how many elements they have; None otherwise."""
    fact = graph.recall(dividend.name) if dividend.name else None
    if not isinstance(fact, WindowSum) or divisor.scalar is None or not dividend.is_expanded:
        return None
    rows, value = fact.rows, fact.value
    is_image = value.rank == _RANK and value.dtype.kind != "c"
    if not is_image or rows[0] != (1, 1, 0, 0) or rows[3] != (1, 1, 0, 0):
        return None
    is_padded = any(low or high for *_, low, high in rows)
    if is_padded or divisor.scalar != math.prod(size for size, *_ in rows):
        return None
    return _pool(graph, "AvgPool", graph.expand(value), rows) if _fits(rows, value) else None


def _fits(rows: Sequence[Row], value: Value) -> bool:
    """Return whether every window has an element, and there is a window."""
    return all(
        min(low, high) >= 0 and max(low, high) < size and 0 not in (dim, _windows(row, dim))
        for row, dim in zip(rows, value.shape, strict=True)
        for size, _, low, high in [row]
    )


def _windows(row: Row, dim: Dim) -> Dim:
    size, stride, low, high = row
    return count_windows(dim + low + high, size, stride)


def _pool(graph: TensorGraph, op_type: str, value: Value, rows: Sequence[Row]) -> Value:
    sizes, strides, low, high = (list(numbers) for numbers in zip(*rows, strict=True))
    shape = [_windows(row, dim) for row, dim in zip(rows, value.shape, strict=True)]
    padding: dict[str, Any] = {"padding": "VALID"}
    if any(low) or any(high):
        pads = [number for pair in zip(low, high, strict=True) for number in pair]
        padding = {"padding": "EXPLICIT", "explicit_paddings": pads}
    return graph.node(op_type, [value], shape=shape, ksize=sizes, strides=strides, **padding)
