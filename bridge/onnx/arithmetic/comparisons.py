"""Comparisons, and choices that depend on them."""

from __future__ import annotations

from bridge.onnx.arithmetic.bitcasts import NOT_READ, in_total_order
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.size_arithmetic import compare_sizes, compute_sizes
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value

__all__ = ["RULES"]

_OPERATIONS = {
    "EQ": "Equal",
    "GE": "GreaterOrEqual",
    "GT": "Greater",
    "LE": "LessOrEqual",
    "LT": "Less",
}
_ORDERS = ("", "FLOAT", "NOTYPE", "SIGNED", "TOTALORDER", "UNSIGNED")


def _compare(graph: Graph, op: Operation) -> Value:
    direction = op.text("comparison_direction").split()[-1].rstrip(">")
    known = compare_sizes(direction, op.operands)
    if known is not None:
        return known
    left, right = op.operands
    order = op.text("compare_type").split(" ")[-1].rstrip(">")
    if order not in _ORDERS:
        op.refuse(f"its order is {order}; known are {', '.join(filter(None, _ORDERS))}")
    if order == "TOTALORDER" and left.is_float:
        keys = [in_total_order(graph, value) for value in (left, right)]
        if keys[0] is None or keys[1] is None:
            op.refuse(*NOT_READ)
        left, right = keys[0], keys[1]
    if left.dtype == bool and direction not in ("EQ", "NE"):
        left, right = (nodes.cast(graph, value, "uint8") for value in (left, right))
    if direction == "NE":
        return _not(graph, nodes.elementwise(graph, "Equal", left, right, dtype=bool))
    return nodes.elementwise(graph, _OPERATIONS[direction], left, right, dtype=bool)


def _not(graph: Graph, value: Value) -> Value:
    return nodes.elementwise(graph, "Not", value)


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
