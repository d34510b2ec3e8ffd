"""The table of the rules by which operations of StableHLO become operations of ONNX.

What is not in here is refused: complex numbers and FFTs, collectives, what talks to the host, and
custom calls of vendors' libraries. Linear algebra has been replaced by other operations before
(`xla_call_module.passes.linear_algebra`). Integers of few bits and small floats go by the same
rules, in a wider dtype (`bridge.onnx.graph.storage_dtypes`), and what they make is fitted
(`bridge.onnx.arithmetic.narrow_operations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.onnx.arithmetic import (
    batch_norms,
    bitcasts,
    bits,
    casts,
    division,
    elementwise,
    random,
    reductions,
)
from bridge.onnx.arrays import gathers, scatters, shapes, slicing, sorting
from bridge.onnx.arrays.sorting import approx_top_k, dynamic_top_k, top_k
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import has_kernel
from bridge.onnx.graph.stablehlo_operation import (
    Emit,
    NarrowResults,
    Operation,
    Rule,
    identity,
)
from bridge.onnx.graph.values import Value
from bridge.onnx.loops import control_flow, loops
from bridge.onnx.windows import convolutions, dots, windows
from bridge.onnx.windows.windows import dynamic_reduce_window

__all__ = ["COMPOSITES", "CUSTOM_CALLS", "RULES"]

_FAMILIES = (
    batch_norms, bitcasts, bits, casts, control_flow, convolutions, division, dots, elementwise,
    gathers, loops, random, reductions, scatters, shapes, slicing, sorting, windows,
)  # fmt: skip


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
    """Leave out an assertion: ONNX has none, the shapes of inputs are the caller's."""
    del graph, op
    return ()


def _expectation(graph: Graph, op: Operation) -> Sequence[Value]:
    """Leave out an expectation, or refuse one whose result says whether it holds."""
    if op.results:
        op.refuse(
            "it says whether a result is the one that is expected, which is for a test to say",
            "return its first operand instead, and compare that with what is expected",
        )
    return _nothing(graph, op)


def _tan(graph: Graph, op: Operation) -> Value:
    """Return the tangent as one operation, which ONNX Runtime does not have of float64."""
    if not has_kernel("Tan", op.result.dtype.name):
        op.refuse(
            f"ONNX Runtime has no Tan of {op.result.dtype.name}",
            "export it with JAX 0.9.1 or later, which says how it is computed",
        )
    return nodes.elementwise(graph, "Tan", *op.operands)


def _top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    results = top_k(graph, op)
    if results is None:
        op.refuse("it has settings that are not known")
    return results


# The rule of each target of a `stablehlo.custom_call`.
CUSTOM_CALLS: Mapping[str, Rule] = {
    "ApproxTopK": Rule(approx_top_k, _ATTRIBUTES),
    "mhlo.tan": Rule(_tan, _ATTRIBUTES, expand=False),
    "mhlo.topk": Rule(_top_k, _ATTRIBUTES),
    # What compares results with those that are expected, in StableHLO's own programs of tests.
    **{
        f"check.{name}": Rule(_expectation, _ATTRIBUTES, expand=False)
        for name in ("eq", "expect_almost_eq", "expect_close", "expect_eq")
    },
    "Sharding": Rule(identity, _ATTRIBUTES, expand=False),
    "annotate_device_placement": Rule(identity, _ATTRIBUTES, expand=False),
    "xla.sdy.FuncResultSharding": Rule(identity, _ATTRIBUTES, expand=False),
    "stablehlo.dynamic_top_k": Rule(dynamic_top_k, _ATTRIBUTES, expand=False),
    "stablehlo.dynamic_reduce_window": Rule(dynamic_reduce_window, _ATTRIBUTES, expand=False),
    "shape_assertion": Rule(_nothing, _ATTRIBUTES, expand=False),
}


def _native(op_type: str) -> Emit:
    """The composite as one operation, where ONNX Runtime has a kernel for its dtype."""

    def emit(graph: Graph, op: Operation) -> Value | None:
        if not has_kernel(op_type, op.result.dtype.name) or len(op.operands) != 1:
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
# The composites that ONNX has as operations; all others are computed by their decompositions.
COMPOSITES: Mapping[str, Rule] = {
    **{f"chlo.{name}": Rule(_native(op_type), expand=False) for name, op_type in _NATIVE.items()},
    "chlo.top_k": Rule(top_k, expand=False),
}

# The rule of each operation; shardings mean nothing on one device.
RULES: Mapping[str, Rule] = {
    name: rule for family in _FAMILIES for name, rule in sorted(family.RULES.items())
} | {
    "sdy.sharding_constraint": Rule(
        identity, ("sharding",), expand=False, narrow=NarrowResults.KEPT
    )
}
