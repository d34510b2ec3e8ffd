"""Quotients, remainders and powers, with XLA's results where a processor would trap.

https://openxla.org/stablehlo/spec#divide leaves division by zero open; XLA gives all ones for the
quotient and the dividend for the remainder, and the least integer divided by -1 is itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.size_arithmetic import compute_sizes
from bridge.graphs.values import Value
from bridge.onnx.arithmetic.bits import is_negative
from bridge.onnx.arithmetic.fusions import fuse_quotient
from bridge.onnx.graph.graph_builder import Graph

__all__ = ["RULES"]


def _divide(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("divide", op.operands)
    if known is not None:
        return known
    dividend, divisor = op.operands
    if dividend.is_float:
        fused = fuse_quotient(graph, dividend, divisor)
        return fused or nodes.elementwise(graph, "Div", dividend, divisor)
    _check_constants(graph, op)
    if _is_harmless(divisor):
        return nodes.elementwise(graph, "Div", dividend, divisor)
    is_zero, is_trap = _traps(graph, divisor)
    safe = nodes.where(graph, is_trap, 1, divisor)
    quotient = nodes.elementwise(graph, "Div", dividend, safe)
    if not divisor.is_unsigned:
        negative = nodes.elementwise(graph, "Neg", dividend)
        quotient = nodes.where(graph, is_trap, negative, quotient)
    all_ones = np.array(-1).astype(divisor.dtype).item()
    return nodes.where(graph, is_zero, all_ones, quotient)


def _remainder(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("remainder", op.operands)
    if known is not None:
        return known
    dividend, divisor = op.operands
    if dividend.is_float:
        return nodes.elementwise(graph, "Mod", dividend, divisor, fmod=1)
    _check_constants(graph, op)
    if _is_harmless(divisor):
        return _rest(graph, dividend, divisor)
    is_zero, is_trap = _traps(graph, divisor)
    safe = nodes.where(graph, is_trap, 1, divisor)
    return nodes.where(graph, is_zero, dividend, _rest(graph, dividend, safe))


def _rest(graph: Graph, dividend: Value, divisor: Value) -> Value:
    """Return the remainder with the sign of the dividend, for which Mod goes through floats."""
    do = partial(nodes.elementwise, graph)
    return do("Sub", dividend, do("Mul", do("Div", dividend, divisor), divisor))


def _check_constants(graph: Graph, op: Operation) -> None:
    """Refuse what is left open where nothing else can have been meant.

    A program of constants has no input that would have to be what it should not be, and StableHLO's
    interpreter has 0 there, unlike XLA.
    """
    dividend, divisor = (value.array for value in op.operands)
    if graph.root.inputs or dividend is None or divisor is None:
        return
    overflows = (dividend < 0) & (np.negative(dividend) == dividend) & (divisor == -1)
    if (divisor == 0).any() or overflows.any():
        op.refuse(
            "it divides a constant by 0, or the least integer by -1, which StableHLO leaves open",
            "divide by another number there",
        )


def _is_harmless(divisor: Value) -> bool:
    """Return whether a divisor is known, and neither 0 nor -1."""
    return divisor.array is not None and not np.isin(divisor.array, (0, -1)).any()


def _traps(graph: Graph, divisor: Value) -> tuple[Value, Value]:
    """Return where the divisor is 0, and where a processor would trap."""
    is_zero = nodes.elementwise(graph, "Equal", divisor, 0)
    if divisor.is_unsigned:
        return is_zero, is_zero
    is_minus_one = nodes.elementwise(graph, "Equal", divisor, -1)
    return is_zero, nodes.elementwise(graph, "Or", is_zero, is_minus_one)


def _power(graph: Graph, op: Operation) -> Value:
    base, exponent = op.operands
    if base.is_float and exponent.scalar == 2:
        return nodes.elementwise(graph, "Mul", base, base)
    if base.is_float:
        return nodes.elementwise(graph, "Pow", base, exponent)
    return _whole_power(graph, base, exponent)


def _whole_power(graph: Graph, base: Value, exponent: Value) -> Value:
    """Return the power by repeated squaring, modulo the size of the integers."""
    do = partial(nodes.elementwise, graph)
    result, square = nodes.constant_like(base, 1), base
    for bit in range(8 * base.dtype.itemsize - (not base.is_unsigned)):
        if exponent.array is not None and not (exponent.array >> bit).any():
            break
        is_skipped = do("Equal", do("BitwiseAnd", exponent, 1 << bit), 0)
        result = do("Mul", result, nodes.where(graph, is_skipped, 1, square))
        square = do("Mul", square, square)
    if base.is_unsigned:
        return result
    negative = do("Less", exponent, 0)
    return nodes.where(graph, negative, _reciprocal_power(graph, base, exponent), result)


def _reciprocal_power(graph: Graph, base: Value, exponent: Value) -> Value:
    """Return the power of a negative exponent: 1 and -1 have reciprocals, all others give 0."""
    do = partial(nodes.elementwise, graph)
    one, minus_one = nodes.constant_like(base, 1), nodes.constant_like(base, -1)
    is_even = do("Equal", do("BitwiseAnd", exponent, 1), 0)
    of_minus_one = nodes.where(graph, is_even, one, minus_one)
    result = nodes.where(graph, do("Equal", base, minus_one), of_minus_one, 0)
    return nodes.where(graph, do("Equal", base, one), one, result)


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
