"""Functions of one element that few targets have as an operation."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value

__all__ = ["cbrt", "round_half_away"]


def round_half_away(graph: TensorGraph, op: Operation) -> Value:
    """Round halves away from zero. To add 0.5 and round down would be wrong just below 0.5."""
    (value,), do = op.operands, partial(nodes.elementwise, graph)
    size = do("Abs", value)
    whole = do("Floor", size)
    up = do("GreaterOrEqual", do("Sub", size, whole), 0.5)
    rounded = nodes.where(graph, up, do("Add", whole, 1), whole)
    rounded = nodes.where(graph, do("IsInf", value), size, rounded)
    # The runtime's Where makes 0 of -0 in what it takes where the condition holds, only there.
    upward = do("GreaterOrEqual", value, 0)
    return nodes.where(graph, upward, rounded, do("Neg", rounded))


def cbrt(graph: TensorGraph, op: Operation) -> Value:
    """The power 1/3 in float64, with a step of Newton's method where that is not precise enough."""
    (value,), do = op.operands, partial(nodes.elementwise, graph)
    wide = nodes.cast(graph, value, np.float64)
    size = do("Abs", wide)
    root = do("Pow", size, 1 / 3)
    if value.dtype == np.float64:
        excess = do("Sub", root, do("Div", size, do("Mul", root, root)))
        better = do("Sub", root, do("Div", excess, 3))
        is_none = do("Or", do("IsNaN", better), do("IsInf", better))
        root = nodes.where(graph, is_none, root, better)
    signed = nodes.where(graph, do("Less", wide, 0), do("Neg", root), root)
    return nodes.cast(graph, nodes.where(graph, do("Equal", wide, 0), wide, signed), value.dtype)
