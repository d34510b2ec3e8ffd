"""Operations of one element at a time: those that targets have, and functions that few have."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.regions import is_identity
from bridge.core_ops.stablehlo_operation import Emit, Operation
from bridge.graphs import nodes
from bridge.graphs.size_arithmetic import compute_sizes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import broadcast

_DECIDED = {"And": False, "Or": True}  # by an operand of this value, whatever the other one is


def native(op_type: str) -> Emit:
    """Return the rule of an operation that the target has with the same meaning."""

    def emit(graph: TensorGraph, op: Operation) -> Value:
        return nodes.elementwise(graph, op_type, *op.operands)

    return emit


def compute(graph: TensorGraph, op: Operation, op_type: str, of_bools: str) -> Value:
    """Return the result of an operation of numbers or sizes, with another name of truth values."""
    known = compute_sizes(op.name.removeprefix("stablehlo."), op.operands)
    if known is not None:
        return known
    chosen = of_bools if op.operands[0].dtype == bool else op_type
    return nodes.elementwise(graph, chosen, *op.operands)


def bitwise(op_type: str, of_bools: str = "") -> Emit:
    """Return the rule of an operation of truth values, or of the bits of integers."""

    def emit(graph: TensorGraph, op: Operation) -> Value:
        if op.operands[0].dtype != bool:
            return nodes.elementwise(graph, f"Bitwise{op_type}", *op.operands)
        decided = _DECIDED.get(op_type)
        for value in op.operands:
            if value.scalar is not None and bool(value.scalar) == decided:
                return value.broadcast_to(broadcast([operand.shape for operand in op.operands]))
        return nodes.elementwise(graph, of_bools or op_type, *op.operands)

    return emit


def maximum(graph: TensorGraph, op: Operation) -> Value:
    """Return a maximum, or Relu where one operand is zero, which runtimes fuse."""
    left, right = op.operands
    shape = broadcast([left.shape, right.shape])
    for value, other in ((left, right), (right, left)):
        if is_identity("maximum", other):
            return value.broadcast_to(shape)
        if value.is_float and value.array is None and other.scalar in (0,):
            return nodes.elementwise(graph, "Relu", value).broadcast_to(shape)
    return compute(graph, op, "Max", "Or")


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
