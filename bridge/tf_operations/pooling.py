"""Reductions of windows by pools, where TensorFlow's compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops.windows import count_windows
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim

__all__ = ["pooled"]

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
    is_nan = nodes.cast(graph, nodes.elementwise(graph, "IsNaN", value), np.float32)
    any_nan = _pool(graph, "MaxPool", graph.expand(is_nan), rows)
    found = nodes.elementwise(graph, "Greater", any_nan, 0)
    return nodes.where(graph, found, np.nan, most)


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
