"""Quotients, remainders and powers, with XLA's results where a processor would trap.

https://openxla.org/stablehlo/spec#divide leaves division by zero open; XLA gives all ones for the
quotient and the dividend for the remainder, and the least integer divided by -1 is itself.
"""

from __future__ import annotations

import numpy as np

from bridge.onnx.arithmetic.fusions import fuse_quotient
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.size_arithmetic import compute_sizes
from bridge.onnx.graph.stablehlo_operation import NarrowResults, Operation, Rule
from bridge.onnx.graph.values import Value

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
    safe = nodes.where(graph, is_trap, nodes.constant_like(divisor, 1), divisor)
    quotient = nodes.elementwise(graph, "Div", dividend, safe)
    if not divisor.is_unsigned:
        negative = nodes.elementwise(graph, "Neg", dividend)
        quotient = nodes.where(graph, is_trap, negative, quotient)
    ones = np.array(-1).astype(divisor.dtype)
    return nodes.where(graph, is_zero, nodes.constant_like(divisor, ones), quotient)


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
    safe = nodes.where(graph, is_trap, nodes.constant_like(divisor, 1), divisor)
    return nodes.where(graph, is_zero, dividend, _rest(graph, dividend, safe))


def _rest(graph: Graph, dividend: Value, divisor: Value) -> Value:
    """Return the remainder with the sign of the dividend, for which Mod goes through floats."""
    quotient = nodes.elementwise(graph, "Div", dividend, divisor)
    return nodes.elementwise(
        graph, "Sub", dividend, nodes.elementwise(graph, "Mul", quotient, divisor)
    )


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
    zero = nodes.constant_like(divisor, 0)
    is_zero = nodes.elementwise(graph, "Equal", divisor, zero, dtype=bool)
    if divisor.is_unsigned:
        return is_zero, is_zero
    minus_one = nodes.constant_like(divisor, -1)
    is_minus_one = nodes.elementwise(graph, "Equal", divisor, minus_one, dtype=bool)
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
    one, zero = nodes.constant_like(base, 1), nodes.constant_like(base, 0)
    result, square = one, base
    for bit in range(8 * base.dtype.itemsize - (not base.is_unsigned)):
        mask = nodes.constant_like(exponent, 1 << bit)
        if exponent.array is not None and not (exponent.array >> bit).any():
            break
        taken = nodes.elementwise(graph, "BitwiseAnd", exponent, mask)
        skip = nodes.elementwise(graph, "Equal", taken, zero, dtype=bool)
        factor = nodes.where(graph, skip, one, square)
        result = nodes.elementwise(graph, "Mul", result, factor)
        square = nodes.elementwise(graph, "Mul", square, square)
    if base.is_unsigned:
        return result
    negative = nodes.elementwise(graph, "Less", exponent, zero, dtype=bool)
    return nodes.where(graph, negative, _reciprocal_power(graph, base, exponent), result)


def _reciprocal_power(graph: Graph, base: Value, exponent: Value) -> Value:
    """Return the power of a negative exponent: 1 and -1 have reciprocals, all others give 0."""
    one, zero, minus = (nodes.constant_like(base, number) for number in (1, 0, -1))
    odd = nodes.elementwise(graph, "BitwiseAnd", exponent, one)
    is_even = nodes.elementwise(graph, "Equal", odd, zero, dtype=bool)
    of_minus_one = nodes.where(graph, is_even, one, minus)
    result: Value = zero
    for number, value in ((-1, of_minus_one), (1, one)):
        is_it = nodes.elementwise(
            graph, "Equal", base, nodes.constant_like(base, number), dtype=bool
        )
        result = nodes.where(graph, is_it, value, result)
    return result


def _atan2(graph: Graph, op: Operation) -> Value:
    """The angle of a point, from the arctangent of the smaller coordinate by the larger one."""
    y, x = op.operands
    wide = np.float64 if y.dtype == np.float64 else np.float32
    a, b = (nodes.cast(graph, value, wide) for value in (y, x))
    size_y, size_x = (nodes.elementwise(graph, "Abs", value) for value in (a, b))
    steep = nodes.elementwise(graph, "Greater", size_y, size_x, dtype=bool)
    less = nodes.where(graph, steep, size_x, size_y)
    more = nodes.where(graph, steep, size_y, size_x)
    ratio = nodes.elementwise(graph, "Div", less, more)
    same = nodes.elementwise(graph, "Equal", less, more, dtype=bool)
    is_zero = nodes.elementwise(graph, "Equal", more, nodes.constant_like(a, 0), dtype=bool)
    at_zero, at_one = nodes.constant_like(a, 0), nodes.constant_like(a, 1)
    ratio = nodes.where(graph, same, nodes.where(graph, is_zero, at_zero, at_one), ratio)
    angle = _atan(graph, ratio)
    turned = nodes.elementwise(graph, "Sub", nodes.constant_like(a, np.pi / 2), angle)
    angle = nodes.where(graph, steep, turned, angle)
    behind = nodes.elementwise(graph, "Sub", nodes.constant_like(a, np.pi), angle)
    angle = nodes.where(graph, _is_negative(graph, b), behind, angle)
    below = nodes.elementwise(graph, "Neg", angle)
    return nodes.cast(graph, nodes.where(graph, _is_negative(graph, a), below, angle), y.dtype)


def _is_negative(graph: Graph, value: Value) -> Value:
    """Return whether a number is below 0, or -0."""
    zero = nodes.constant_like(value, 0)
    below = nodes.elementwise(graph, "Less", value, zero, dtype=bool)
    reciprocal = nodes.elementwise(graph, "Reciprocal", value)
    is_zero = nodes.elementwise(graph, "Equal", value, zero, dtype=bool)
    signed = nodes.elementwise(graph, "Less", reciprocal, zero, dtype=bool)
    return nodes.elementwise(graph, "Or", below, nodes.elementwise(graph, "And", is_zero, signed))


def _atan(graph: Graph, value: Value) -> Value:
    """The arctangent; for float64 that of float32, with what is missing added.

    With t the angle so far, tan(angle - t) is (value * cos t - sin t) / (cos t + value * sin t).
    """
    if value.dtype != np.float64:
        return nodes.elementwise(graph, "Atan", value)
    narrow = nodes.elementwise(graph, "Atan", nodes.cast(graph, value, np.float32))
    angle = nodes.cast(graph, narrow, np.float64)
    sine, cosine = (nodes.elementwise(graph, name, angle) for name in ("Sin", "Cos"))
    above = nodes.elementwise(graph, "Sub", nodes.elementwise(graph, "Mul", value, cosine), sine)
    below = nodes.elementwise(graph, "Add", nodes.elementwise(graph, "Mul", value, sine), cosine)
    return nodes.elementwise(graph, "Add", angle, nodes.elementwise(graph, "Div", above, below))


RULES = {
    "stablehlo.atan2": Rule(_atan2, ("result_accuracy",), expand=False),
    "stablehlo.divide": Rule(_divide, expand=False),
    "stablehlo.power": Rule(_power, ("result_accuracy",), expand=False),
    "stablehlo.remainder": Rule(_remainder, expand=False, narrow=NarrowResults.KEPT_INTEGERS),
}
