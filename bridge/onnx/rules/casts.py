"""Conversions between dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value, constant_array
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import FLOAT8_OPSET
from xla_call_module.errors import VersionError

_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def _convert(graph: Graph, op: Operation) -> Value:
    return convert(graph, op.operands[0], op.result.dtype)


def convert(graph: Graph, value: Value, dtype: np.dtype[Any]) -> Value:
    """Return the result of StableHLO's `convert`: floats become the nearest integer, as in XLA."""
    if value.dtype == dtype:
        return value
    if graph.opset < FLOAT8_OPSET and {value.dtype.name, dtype.name}.intersection(_FLOAT8):
        raise VersionError(
            f"ONNX has floats of 8 bits from opset {FLOAT8_OPSET} on, and opset is {graph.opset}. "
            "To do: take a newer one."
        )
    is_float = np.zeros(0, dtype).dtype.kind not in "biu"
    if value.is_float and not is_float and dtype != np.bool_:
        return _to_integer(graph, value, dtype)
    if dtype.name in _FLOAT8:
        value = graph.cast(value, np.dtype(np.float32))
    return graph.cast(value, dtype)


def _to_integer(graph: Graph, value: Value, dtype: np.dtype[Any]) -> Value:
    """Round towards zero; NaN becomes 0, and what is out of bounds the nearest integer."""
    if value.array is not None:
        return _fold(value, dtype)
    bounds = np.iinfo(dtype)
    wide = np.float64 if dtype.itemsize >= np.dtype(np.int32).itemsize else np.float32
    floats = nodes.cast(graph, value, wide if value.dtype != np.float64 else np.float64)
    if graph.exact:
        is_nan = nodes.elementwise(graph, "IsNaN", floats)
        floats = nodes.where(graph, is_nan, 0, floats)
    if dtype.itemsize < np.dtype(np.int64).itemsize:
        clipped = nodes.elementwise(graph, "Clip", floats, bounds.min, bounds.max)
        through = np.int64 if dtype == np.uint32 else np.int32
        return nodes.cast(graph, nodes.cast(graph, clipped, through), dtype)
    # The largest integer is no float, so nothing is clipped to it, and it is put in afterwards.
    limit = floats.dtype.type(2.0**64 if bounds.min == 0 else 2.0**63)
    below = np.nextafter(limit, floats.dtype.type(0))
    clipped = nodes.elementwise(graph, "Clip", floats, bounds.min, below)
    too_large = nodes.elementwise(graph, "GreaterOrEqual", floats, limit)
    return nodes.where(graph, too_large, bounds.max, _truncate(graph, clipped, dtype))


def _truncate(graph: Graph, floats: Value, dtype: np.dtype[Any]) -> Value:
    """Return floats in bounds as 64-bit integers; the upper half of unsigned ones is apart."""
    if dtype != np.uint64:
        return nodes.cast(graph, floats, dtype)
    upper = nodes.elementwise(graph, "GreaterOrEqual", floats, 2.0**63)
    less = nodes.elementwise(graph, "Sub", floats, 2.0**63)
    rest = nodes.cast(graph, nodes.where(graph, upper, less, floats), np.int64)
    added = nodes.where(graph, upper, nodes.constant(1 << 63, np.uint64), 0)
    return nodes.elementwise(graph, "BitwiseOr", nodes.cast(graph, rest, np.uint64), added)


def _fold(value: Value, dtype: np.dtype[Any]) -> Value:
    assert value.array is not None, "the value is constant"
    bounds = np.iinfo(dtype)
    exact = np.trunc(np.nan_to_num(value.array.astype(np.float64), nan=0.0))
    numbers = [min(max(int(n), bounds.min), bounds.max) for n in exact.reshape(-1)]
    array = np.array(numbers, dtype).reshape(value.array.shape)
    return constant_array(array).broadcast_to(value.shape)


RULES = {
    "stablehlo.convert": Rule(_convert, expand=False),
}
