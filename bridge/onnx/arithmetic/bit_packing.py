"""Truth values as the bits of integers, the lowest bit first, and back."""

from __future__ import annotations

import numpy as np

from bridge.onnx.arithmetic.reductions import reduce_along
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.values import Value

__all__ = ["bits_of_flags", "flags_of_bits"]


def bits_of_flags(graph: Graph, flags: Value, bits: int) -> Value:
    """The unsigned integers of some bits whose bits are in the last dimension."""
    numbers = nodes.cast(graph, flags, np.uint64)
    moved = _shifted(graph, numbers, bits, "LEFT")
    return nodes.cast(graph, reduce_along(graph, "add", moved, [moved.rank - 1]), f"uint{bits}")


def flags_of_bits(graph: Graph, value: Value) -> Value:
    """The bits of unsigned integers in a new last dimension."""
    column = nodes.expand_dims(graph, nodes.cast(graph, value, np.uint64), [value.rank])
    moved = _shifted(graph, column, 8 * value.dtype.itemsize, "RIGHT")
    lowest = nodes.elementwise(graph, "BitwiseAnd", moved, nodes.constant(1, np.uint64))
    return nodes.cast(graph, lowest, bool)


def _shifted(graph: Graph, value: Value, bits: int, direction: str) -> Value:
    """Along the last dimension by 0, 1, 2, … bits."""
    amounts = np.arange(bits, dtype=np.uint64)
    line = Value(amounts.dtype, amounts.shape, amounts.shape, array=amounts)
    return nodes.elementwise(graph, "BitShift", value, line, direction=direction)
