"""Operations of one element at a time: those that targets have, and functions that few have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from bridge.core_ops.regions import is_identity
from bridge.core_ops.stablehlo_operation import Emit, Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.size_arithmetic import compare_sizes, compute_sizes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import broadcast
from xla_call_module.stablehlo.attributes import comparison_direction

ACCURACY = ("result_accuracy",)  # a permission to be less precise, of which no use is made
COMPARISONS = {"EQ": "Equal", "GE": "GreaterOrEqual", "GT": "Greater", "LE": "LessOrEqual",
               "LT": "Less", "NE": "NotEqual"}  # fmt: skip
_ORDERS = ("", "FLOAT", "NOTYPE", "SIGNED", "TOTALORDER", "UNSIGNED")

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


def arithmetic(op_type: str, of_bools: str) -> Emit:
    """Return the rule of an operation of numbers or sizes, with another name of truth values."""
    return lambda graph, op: compute(graph, op, op_type, of_bools)


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


def _maximum(graph: TensorGraph, op: Operation) -> Value:
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


def _cbrt(graph: TensorGraph, op: Operation) -> Value:
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


def _negate(graph: TensorGraph, op: Operation) -> Value:
    (value,) = op.operands
    if value.is_unsigned:
        return nodes.elementwise(graph, "Sub", 0, value)
    return nodes.elementwise(graph, "Neg", value)


def _clamp(graph: TensorGraph, op: Operation) -> Value:
    low, value, high = op.operands
    known = compute_sizes("maximum", [value, low])
    raised = known or nodes.elementwise(graph, "Max", value, low)
    known = compute_sizes("minimum", [raised, high])
    return known or nodes.elementwise(graph, "Min", raised, high)


def bits_of(value: Value) -> int:
    """Return the number of bits of an element."""
    return 8 * value.dtype.itemsize


def unsigned(graph: TensorGraph, value: Value) -> Value:
    """Return integers as unsigned ones of the same size."""
    return nodes.cast(graph, value, f"uint{bits_of(value)}")


def shift_rule(op_type: str, **attributes: Any) -> Emit:
    """Return the rule of a shift that brings in zeros, alone if it is by all bits or more."""

    def emit(graph: TensorGraph, op: Operation) -> Value:
        value, amount = op.operands
        bits, by = unsigned(graph, value), unsigned(graph, amount)
        moved = nodes.elementwise(graph, op_type, bits, by, **attributes)
        if by.array is None or (by.array >= bits_of(value)).any():
            inside = nodes.elementwise(graph, "Less", by, bits_of(value))
            moved = nodes.where(graph, inside, moved, 0)
        return nodes.cast(graph, moved, value.dtype)

    return emit


def reciprocal_of(divisor: Array) -> Array | None:
    """Return the reciprocal of constants, by which XLA multiplies in place of a division.

    It is flushed to 0 where it is no normal number
    (xla/hlo/transforms/simplifiers/algebraic_simplifier.cc, `HandleDivide`). The reciprocal of a
    bfloat16 is a float32 in XLA, so that the product differs from a quotient only where it is 0:
    None where it does not.
    """
    with np.errstate(all="ignore"):
        made = (np.ones((), divisor.dtype) / divisor).astype(divisor.dtype)
    if divisor.dtype == ml_dtypes.bfloat16 and _are_normal(divisor) and _are_normal(made):
        return None
    return made


def _are_normal(array: Array) -> bool:
    limits: Any = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    return bool(np.all(np.abs(array) >= limits.tiny))


def comparison(
    total_order: Callable[[Any, Operation, Value], Value],
    compare: Callable[[Any, str, Value, Value], Value],
) -> Rule:
    """Return the rule of comparisons, by integers in the total order of floats."""

    def emit(graph: TensorGraph, op: Operation) -> Value:
        direction = comparison_direction(op.raw)
        known = compare_sizes(direction, op.operands)
        if known is not None:
            return known
        left, right = op.operands
        order = op.text("compare_type").split(" ")[-1].rstrip(">")
        if order not in _ORDERS:
            op.refuse(f"its order is {order}; known are {', '.join(filter(None, _ORDERS))}")
        if order == "TOTALORDER" and left.is_float:
            left, right = (total_order(graph, op, value) for value in (left, right))
        if left.dtype == bool and direction not in ("EQ", "NE"):
            left, right = (nodes.cast(graph, value, "uint8") for value in (left, right))
        return compare(graph, direction, left, right)

    return Rule(emit, ("compare_type", "comparison_direction"), expand=False)


# The rules that targets share.
RULES = {
    "stablehlo.and": Rule(bitwise("And"), expand=False),
    "stablehlo.cbrt": Rule(_cbrt, ACCURACY, expand=False),
    "stablehlo.clamp": Rule(_clamp, expand=False),
    "stablehlo.maximum": Rule(_maximum, expand=False),
    "stablehlo.minimum": Rule(arithmetic("Min", "And"), expand=False),
    "stablehlo.negate": Rule(_negate, expand=False),
    "stablehlo.not": Rule(bitwise("Not"), expand=False),
    "stablehlo.or": Rule(bitwise("Or"), expand=False),
}
