"""Quotients, remainders and powers of integers, with XLA's results where a processor would trap.

https://openxla.org/stablehlo/spec#divide leaves division by zero open; XLA gives all ones for the
quotient and the dividend for the remainder, and the least integer divided by -1 is itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value


def divide_integers(graph: TensorGraph, op: Operation) -> Value:
    """Return the quotient of integers, rounded towards zero."""
    dividend, divisor = op.operands
    _check_constants(graph, op)
    if not graph.exact or _is_harmless(divisor):
        return nodes.elementwise(graph, "Div", dividend, divisor)
    is_zero, is_trap = _traps(graph, divisor)
    safe = nodes.where(graph, is_trap, 1, divisor)
    quotient = nodes.elementwise(graph, "Div", dividend, safe)
    if not divisor.is_unsigned:
        negative = nodes.elementwise(graph, "Neg", dividend)
        quotient = nodes.where(graph, is_trap, negative, quotient)
    all_ones = np.array(-1).astype(divisor.dtype).item()
    return nodes.where(graph, is_zero, all_ones, quotient)


def remainder_of_integers(graph: TensorGraph, op: Operation) -> Value:
    """Return the remainder of integers, with the sign of the dividend."""
    dividend, divisor = op.operands
    _check_constants(graph, op)
    if not graph.exact or _is_harmless(divisor):
        return _rest(graph, dividend, divisor)
    is_zero, is_trap = _traps(graph, divisor)
    safe = nodes.where(graph, is_trap, 1, divisor)
    return nodes.where(graph, is_zero, dividend, _rest(graph, dividend, safe))


def _rest(graph: TensorGraph, dividend: Value, divisor: Value) -> Value:
    """Return the remainder with the sign of the dividend, for which Mod goes through floats."""
    do = partial(nodes.elementwise, graph)
    return do("Sub", dividend, do("Mul", do("Div", dividend, divisor), divisor))


def _check_constants(graph: TensorGraph, op: Operation) -> None:
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


def _traps(graph: TensorGraph, divisor: Value) -> tuple[Value, Value]:
    """Return where the divisor is 0, and where a processor would trap."""
    is_zero = nodes.elementwise(graph, "Equal", divisor, 0)
    if divisor.is_unsigned:
        return is_zero, is_zero
    is_minus_one = nodes.elementwise(graph, "Equal", divisor, -1)
    return is_zero, nodes.elementwise(graph, "Or", is_zero, is_minus_one)


def whole_power(graph: TensorGraph, base: Value, exponent: Value) -> Value:
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


def _reciprocal_power(graph: TensorGraph, base: Value, exponent: Value) -> Value:
    """Return the power of a negative exponent: 1 and -1 have reciprocals, all others give 0."""
    do = partial(nodes.elementwise, graph)
    one, minus_one = nodes.constant_like(base, 1), nodes.constant_like(base, -1)
    is_even = do("Equal", do("BitwiseAnd", exponent, 1), 0)
    of_minus_one = nodes.where(graph, is_even, one, minus_one)
    result = nodes.where(graph, do("Equal", base, minus_one), of_minus_one, 0)
    return nodes.where(graph, do("Equal", base, one), one, result)
