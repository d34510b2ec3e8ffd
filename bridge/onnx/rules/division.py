"""Quotients, remainders and powers, with XLA's results where a processor would trap.

https://openxla.org/stablehlo/spec#divide leaves division by zero open; XLA gives all ones for the
quotient and the dividend for the remainder, and the least integer divided by -1 is itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.integer_division import divide_integers, remainder_of_integers, whole_power
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.size_arithmetic import compute_sizes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.rules.bits import is_negative
from bridge.onnx.rules.fusions import fuse_quotient


def _divide(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("divide", op.operands)
    if known is not None:
        return known
    dividend, divisor = op.operands
    if dividend.is_float:
        fused = fuse_quotient(graph, dividend, divisor)
        return fused or nodes.elementwise(graph, "Div", dividend, divisor)
    return divide_integers(graph, op)


def _remainder(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("remainder", op.operands)
    if known is not None:
        return known
    dividend, divisor = op.operands
    if dividend.is_float:
        return nodes.elementwise(graph, "Mod", dividend, divisor, fmod=1)
    return remainder_of_integers(graph, op)


def _power(graph: Graph, op: Operation) -> Value:
    base, exponent = op.operands
    if base.is_float and exponent.scalar == 2:
        return nodes.elementwise(graph, "Mul", base, base)
    if base.is_float:
        return nodes.elementwise(graph, "Pow", base, exponent)
    return whole_power(graph, base, exponent)


def _atan2(graph: Graph, op: Operation) -> Value:
    """The angle of a point, from the arctangent of the smaller coordinate by the larger one."""
    y, x = op.operands
    wide = np.float64 if y.dtype == np.float64 else np.float32
    a, b = (nodes.cast(graph, value, wide) for value in (y, x))
    do = partial(nodes.elementwise, graph)
    size_y, size_x = do("Abs", a), do("Abs", b)
    steep = do("Greater", size_y, size_x)
    less = nodes.where(graph, steep, size_x, size_y)
    more = nodes.where(graph, steep, size_y, size_x)
    of_equals = nodes.where(graph, do("Equal", more, 0), nodes.constant_like(a, 0), 1)
    ratio = nodes.where(graph, do("Equal", less, more), of_equals, do("Div", less, more))
    angle = _atan(graph, ratio)
    angle = nodes.where(graph, steep, do("Sub", np.pi / 2, angle), angle)
    angle = nodes.where(graph, is_negative(graph, b), do("Sub", np.pi, angle), angle)
    angle = nodes.where(graph, is_negative(graph, a), do("Neg", angle), angle)
    return nodes.cast(graph, angle, y.dtype)


def _atan(graph: Graph, value: Value) -> Value:
    """The arctangent; for float64 that of float32, with what is missing added.

    With t the angle so far, tan(angle - t) is (value * cos t - sin t) / (cos t + value * sin t).
    """
    do = partial(nodes.elementwise, graph)
    if value.dtype != np.float64:
        return do("Atan", value)
    angle = nodes.cast(graph, do("Atan", nodes.cast(graph, value, np.float32)), np.float64)
    sine, cosine = do("Sin", angle), do("Cos", angle)
    above = do("Sub", do("Mul", value, cosine), sine)
    below = do("Add", do("Mul", value, sine), cosine)
    return do("Add", angle, do("Div", above, below))


RULES = {
    "stablehlo.atan2": Rule(_atan2, ("result_accuracy",), expand=False),
    "stablehlo.divide": Rule(_divide, expand=False),
    "stablehlo.power": Rule(_power, ("result_accuracy",), expand=False),
    "stablehlo.remainder": Rule(_remainder, expand=False),
}
