"""Composites that ONNX has as operations; all others are computed as they define themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.onnx.arrays.sorting import top_k
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value

__all__ = ["RULES"]

# The results, or None where the definition is to be taken.
_Emit = Callable[[Graph, Operation], Value | Sequence[Value] | None]


def _native(op_type: str) -> _Emit:
    """One operation, but for float64, for which ONNX Runtime has no kernel."""

    def emit(graph: Graph, op: Operation) -> Value | None:
        if op.result.dtype.name == "float64" or len(op.operands) != 1:
            return None
        return nodes.elementwise(graph, op_type, *op.operands)

    return emit


# What ONNX has with the same meaning, by its name in StableHLO's dialect of composed operations.
_NATIVE = {
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "cosh": "Cosh",
    "erf": "Erf",
    "sinh": "Sinh",
}
RULES: dict[str, _Emit] = {
    **{f"chlo.{name}": _native(op_type) for name, op_type in _NATIVE.items()},
    "chlo.top_k": top_k,
}
