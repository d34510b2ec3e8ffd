"""Fourier transforms, along the last one to three dimensions."""

from __future__ import annotations

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph


def _fft(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    kind = op.text("fft_type").split(" ")[-1].rstrip(">")
    lengths = op.integers("fft_length")
    first = value.rank - len(lengths)
    axes = list(range(first, value.rank))
    if kind == "RFFT":
        value = _of_reals(graph, value)
        for axis in reversed(axes[:-1]):
            value = _along(graph, "FFT", value, axis)
        return value
    if kind == "IRFFT":
        for axis in axes[:-1]:
            value = _along(graph, "IFFT", value, axis)
        return _to_reals(graph, value, lengths[-1])
    for axis in axes:
        value = _along(graph, kind, value, axis)
    return value


def _along(graph: Graph, op_type: str, value: Value, axis: int) -> Value:
    """Return the transform along one dimension."""
    order = [*(number for number in range(value.rank) if number != axis), axis]
    turned = graph.expand(nodes.transpose(graph, value, order))
    made = graph.node(op_type, [turned], shape=turned.shape)
    return nodes.transpose(graph, made, [order.index(number) for number in range(value.rank)])


def _of_reals(graph: Graph, value: Value) -> Value:
    """Return the transform of real numbers along the last dimension, without its second half."""
    length = value.shape[-1]
    shape = (*value.shape[:-1], length // 2 + 1 if isinstance(length, int) else None)
    kind = np.dtype(f"c{2 * value.dtype.itemsize}")
    size = nodes.cast(graph, graph.vector([length]), np.int32)
    return graph.node("RFFT", [graph.expand(value), graph.expand(size)], shape=shape, dtype=kind)


def _to_reals(graph: Graph, value: Value, length: int) -> Value:
    shape, kind = (*value.shape[:-1], length), np.dtype(f"f{value.dtype.itemsize // 2}")
    size = nodes.cast(graph, graph.vector([length]), np.int32)
    return graph.node("IRFFT", [graph.expand(value), graph.expand(size)], shape=shape, dtype=kind)


RULES = {"stablehlo.fft": Rule(_fft, ("fft_length", "fft_type"))}
