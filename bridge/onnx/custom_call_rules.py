"""Targets of custom calls: what says something of shapes, or nothing at all, and XLA's own.

JAX before 0.9.1 calls operations of MHLO where later versions have composites; here are those that
`xla_call_module.stablehlo.mhlo` does not make into composites before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.onnx.arrays.sorting import approx_top_k, dynamic_top_k, top_k
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value
from bridge.onnx.windows.windows import dynamic_reduce_window

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
    "mhlo.attributes",
    "mhlo.backend_config",
    "mhlo.version",
    "operand_layouts",
    "output_operand_aliases",
    "result_layouts",
)


def _nothing(graph: Graph, op: Operation) -> Sequence[Value]:
    """ONNX has no assertions: the shapes of the inputs are the caller's."""
    del graph, op
    return ()


def _expectation(graph: Graph, op: Operation) -> Sequence[Value]:
    """Nothing, as of an assertion; before StableHLO 1.0 these say whether they hold."""
    if op.results:
        op.refuse(
            "it says whether a result is the one that is expected, which is for a test to say",
            "return its first operand instead, and compare that with what is expected",
        )
    return _nothing(graph, op)


def _identity(graph: Graph, op: Operation) -> Value:
    del graph
    return op.operands[0]


def _tan(graph: Graph, op: Operation) -> Value:
    """One operation, but for float64, for which ONNX Runtime has no kernel."""
    if op.result.dtype == np.float64:
        op.refuse(
            "ONNX Runtime has no Tan of float64",
            "export it with JAX 0.9.1 or later, which says how it is computed",
        )
    return nodes.elementwise(graph, "Tan", *op.operands)


def _top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    found = top_k(graph, op)
    if found is None:
        op.refuse("it has settings that are not known")
    return found


# Operations of a dialect of shardings, which mean nothing on one device.
OPERATIONS = {
    "sdy.sharding_constraint": Rule(_identity, ("sharding",), whole=False),
}
RULES = {
    "ApproxTopK": Rule(approx_top_k, _ATTRIBUTES),
    "mhlo.tan": Rule(_tan, _ATTRIBUTES, whole=False),
    "mhlo.topk": Rule(_top_k, _ATTRIBUTES),
    # What compares results with those that are expected, in StableHLO's own programs of tests.
    **{
        f"check.{name}": Rule(_expectation, _ATTRIBUTES, whole=False)
        for name in ("eq", "expect_almost_eq", "expect_close", "expect_eq")
    },
    "Sharding": Rule(_identity, _ATTRIBUTES, whole=False),
    "annotate_device_placement": Rule(_identity, _ATTRIBUTES, whole=False),
    "xla.sdy.FuncResultSharding": Rule(_identity, _ATTRIBUTES, whole=False),
    "stablehlo.dynamic_top_k": Rule(dynamic_top_k, _ATTRIBUTES, whole=False),
    "stablehlo.dynamic_reduce_window": Rule(dynamic_reduce_window, _ATTRIBUTES, whole=False),
    "shape_assertion": Rule(_nothing, _ATTRIBUTES, whole=False),
}
