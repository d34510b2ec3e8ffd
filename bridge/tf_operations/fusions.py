"""Several operations that are one operation of TensorFlow."""

from __future__ import annotations

import math

from bridge.core_ops.softmaxes import Reduction
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value

__all__ = ["fuse_mean"]


def fuse_mean(graph: TensorGraph, dividend: Value, divisor: Value) -> Value | None:
    """Return Mean for a sum by how many there were; None for other quotients."""
    column = graph.source(dividend.name, "Unsqueeze")
    fact = graph.recall(dividend.name if column is None else column.inputs[0])
    if not isinstance(fact, Reduction) or fact.reducer != "add" or divisor.scalar is None:
        return None
    sizes = [fact.shape[axis] for axis in fact.axes]
    count = math.prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes) or divisor.scalar != count:
        return None
    axes = list(fact.axes)
    if column is not None:
        expanded = graph.constant(column.inputs[1])
        if expanded is None or expanded.tolist() != axes:
            return None
    given = Value(dividend.dtype, (), (), fact.name)
    shape = dividend.unbroadcast_shape
    vector = graph.vector(axes)
    keepdims = int(column is not None)
    made = graph.node("ReduceMean", [given, vector], shape=shape, keepdims=keepdims)
    return made.broadcast_to(dividend.shape)
