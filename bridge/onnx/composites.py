"""Composites that ONNX has as operations; all others are computed as they define themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.onnx import nodes
from bridge.onnx.graph import Graph
from bridge.onnx.operation import Operation
from bridge.onnx.sorting import top_k
from bridge.onnx.values import Value

__all__ = ["NATIVE", "RULES"]

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
NATIVE = {
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
    **{f"chlo.{name}": _native(op_type) for name, op_type in NATIVE.items()},
    "chlo.top_k": top_k,
}
