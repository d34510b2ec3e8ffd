"""Targets of custom calls that say something of shapes, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.onnx.graph import Graph
from bridge.onnx.operation import Operation
from bridge.onnx.rules import Rule
from bridge.onnx.sorting import approx_top_k
from bridge.onnx.values import Value
from bridge.onnx.windows import dynamic_reduce_window

__all__ = ["OPERATIONS", "RULES"]

_ATTRIBUTES = (
    "api_version",
    "backend_config",
    "call_target_name",
    "called_computations",
    "custom_call_schedule",
    "error_message",
    "has_side_effect",
    "indices_of_shape_operands",
    "mhlo.backend_config",
    "operand_layouts",
    "output_operand_aliases",
    "result_layouts",
)


def _nothing(graph: Graph, op: Operation) -> Sequence[Value]:
    """ONNX has no assertions: the shapes of the inputs are the caller's."""
    del graph, op
    return ()


def _identity(graph: Graph, op: Operation) -> Value:
    del graph
    return op.operands[0]


# Operations of a dialect of shardings, which mean nothing on one device.
OPERATIONS = {
    "sdy.sharding_constraint": Rule(_identity, ("sharding",), whole=False),
}
RULES = {
    "ApproxTopK": Rule(approx_top_k, _ATTRIBUTES),
    "Sharding": Rule(_identity, _ATTRIBUTES, whole=False),
    "annotate_device_placement": Rule(_identity, _ATTRIBUTES, whole=False),
    "xla.sdy.FuncResultSharding": Rule(_identity, _ATTRIBUTES, whole=False),
    "stablehlo.dynamic_reduce_window": Rule(dynamic_reduce_window, _ATTRIBUTES, whole=False),
    "shape_assertion": Rule(_nothing, _ATTRIBUTES, whole=False),
}
