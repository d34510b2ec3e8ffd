"""Comparisons, and choices that depend on them."""

from __future__ import annotations

from bridge.onnx import nodes
from bridge.onnx.graph import Graph
from bridge.onnx.operation import Operation
from bridge.onnx.rules import Rule
from bridge.onnx.size_arithmetic import compare_sizes, compute_sizes
from bridge.onnx.values import Value

__all__ = ["RULES"]

_OPERATIONS = {
    "EQ": "Equal",
    "GE": "GreaterOrEqual",
    "GT": "Greater",
    "LE": "LessOrEqual",
    "LT": "Less",
}
_SWAPPED = {"GE": "LE", "GT": "LT"}


def _compare(graph: Graph, op: Operation) -> Value:
    direction = op.text("comparison_direction").split()[-1].rstrip(">")
    known = compare_sizes(direction, op.operands)
    if known is not None:
        return known
    left, right = op.operands
    if "TOTALORDER" in op.text("compare_type") and left.is_float:
        return _total_order(graph, direction, left, right)
    if left.dtype == bool and direction not in ("EQ", "NE"):
        left, right = (nodes.cast(graph, value, "uint8") for value in (left, right))
    if direction == "NE":
        return _not(graph, nodes.elementwise(graph, "Equal", left, right, dtype=bool))
    return nodes.elementwise(graph, _OPERATIONS[direction], left, right, dtype=bool)


def _total_order(graph: Graph, direction: str, left: Value, right: Value) -> Value:
    """-0 is before 0, and NaN after everything else; all NaNs are one and the same."""
    if direction == "NE":
        return _not(graph, _total_order(graph, "EQ", left, right))
    if direction in _SWAPPED:
        return _total_order(graph, _SWAPPED[direction], right, left)
    nan_left, nan_right = (nodes.elementwise(graph, "IsNaN", v, dtype=bool) for v in (left, right))
    if direction == "EQ":
        both = nodes.elementwise(graph, "And", nan_left, nan_right)
        return _or(graph, both, _same_bits(graph, left, right))
    less = _or(graph, nodes.elementwise(graph, "Less", left, right, dtype=bool),
               _zeros_in_order(graph, left, right))  # fmt: skip
    before = _or(graph, less, nodes.elementwise(graph, "And", nan_right, _not(graph, nan_left)))
    if direction == "LT":
        return before
    return _or(graph, before, _total_order(graph, "EQ", left, right))


def _same_bits(graph: Graph, left: Value, right: Value) -> Value:
    """Whether numbers are the same, the signs of zeros included."""
    equal = nodes.elementwise(graph, "Equal", left, right, dtype=bool)
    signs = [nodes.elementwise(graph, "Reciprocal", value) for value in (left, right)]
    alike = nodes.elementwise(graph, "Equal", *signs, dtype=bool)
    return nodes.elementwise(graph, "And", equal, alike)


def _zeros_in_order(graph: Graph, left: Value, right: Value) -> Value:
    """Whether left is -0 and right is 0."""
    equal = nodes.elementwise(graph, "Equal", left, right, dtype=bool)
    signs = [nodes.elementwise(graph, "Reciprocal", value) for value in (left, right)]
    ordered = nodes.elementwise(graph, "Less", *signs, dtype=bool)
    return nodes.elementwise(graph, "And", equal, ordered)


def _not(graph: Graph, value: Value) -> Value:
    return nodes.elementwise(graph, "Not", value)


def _or(graph: Graph, left: Value, right: Value) -> Value:
    return nodes.elementwise(graph, "Or", left, right)


def _select(graph: Graph, op: Operation) -> Value:
    return nodes.where(graph, *op.operands)


def _clamp(graph: Graph, op: Operation) -> Value:
    low, value, high = op.operands
    known = compute_sizes("maximum", [value, low])
    raised = known or nodes.elementwise(graph, "Max", value, low)
    known = compute_sizes("minimum", [raised, high])
    return known or nodes.elementwise(graph, "Min", raised, high)


RULES = {
    "stablehlo.clamp": Rule(_clamp, whole=False),
    "stablehlo.compare": Rule(_compare, ("compare_type", "comparison_direction"), whole=False),
    "stablehlo.select": Rule(_select, whole=False),
}
