"""The table of the rules by which operations of StableHLO become operations of ONNX.

Complex numbers, Fourier transforms, random bits, batch normalizations, and integers of few bits and
small floats are decomposed before (`decomposed_call.py`). What is not in here is refused:
collectives of several devices, what talks to the host, and custom calls of vendors' libraries.
Linear algebra has been replaced by other operations before
(`xla_call_module.passes.linear_algebra`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.core_ops import branches, collectives, dots, gathers, scatters, shapes, slicing, windows
from bridge.core_ops.stablehlo_operation import Emit, GraphTarget, Operation, Rule, identity
from bridge.core_ops.windows import dynamic_reduce_window
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.kernels import dtype_of
from bridge.onnx.graph.onnx_runtime import has_kernel
from bridge.onnx.rules import (
    bits,
    casts,
    control_flow,
    convolutions,
    division,
    elementwise,
    fourier,
    reductions,
    sorting,
)
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

_FAMILIES = (
    bits, branches, casts, collectives, control_flow, convolutions, division, dots, elementwise,
    gathers, reductions, scatters, shapes, slicing, sorting, windows,
)  # fmt: skip


def _assertion(graph: Graph, op: Operation) -> Sequence[Value]:
    """Leave out an assertion, of which ONNX has none; refuse one whose result says if it holds."""
    del graph
    if op.results:
        op.refuse(
            "it says whether a result is the one that is expected, which is for a test to say",
            "return its first operand instead, and compare that with what is expected",
        )
    return ()


# The rule of each target of a `stablehlo.custom_call`.
_CUSTOM_CALLS: Mapping[str, Rule] = {
    **sorting.SORTS.custom_calls(),
    "mhlo.tan": Rule(elementwise.tan, CUSTOM_CALL_ATTRIBUTES, expand=False),
    # What compares results with those that are expected, in StableHLO's own programs of tests.
    **{
        f"check.{name}": Rule(_assertion, CUSTOM_CALL_ATTRIBUTES, expand=False)
        for name in ("eq", "expect_almost_eq", "expect_close", "expect_eq")
    },
    "Sharding": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "annotate_device_placement": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "xla.sdy.FuncResultSharding": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "stablehlo.dynamic_reduce_window": Rule(
        dynamic_reduce_window, CUSTOM_CALL_ATTRIBUTES, expand=False
    ),
    "shape_assertion": Rule(_assertion, CUSTOM_CALL_ATTRIBUTES, expand=False),
}


def _native(op_type: str) -> Emit:
    """The composite as one operation, where ONNX Runtime has a kernel for its dtype."""

    def emit(graph: Graph, op: Operation) -> Value | None:
        if not has_kernel(op_type, op.result.dtype.name) or len(op.operands) != 1:
            return None
        return nodes.elementwise(graph, op_type, *op.operands)

    return emit


def _erf(graph: Graph, op: Operation) -> Value | None:
    """Return the error function, and NaN of NaN, of which older releases have 1."""
    (value,) = op.operands
    if not has_kernel("Erf", value.dtype.name):
        return None
    made = nodes.elementwise(graph, "Erf", value)
    if not graph.exact:
        return made
    return nodes.where(graph, nodes.elementwise(graph, "IsNaN", value), value, made)


# Operations of CHLO that ONNX has with the same meaning and name.
_NATIVE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh")
# The composites that ONNX has as operations; all others are computed by their decompositions.
_COMPOSITES: Mapping[str, Rule] = {
    **{f"chlo.{name}": Rule(_native(name.capitalize()), expand=False) for name in _NATIVE},
    "chlo.erf": Rule(_erf, expand=False),
    "chlo.top_k": Rule(sorting.SORTS.top_k, expand=False),
    **fourier.COMPOSITES,
}

_RULES: Mapping[str, Rule] = {
    name: rule for family in _FAMILIES for name, rule in family.RULES.items()
}


TARGET = GraphTarget(
    name="ONNX",
    rules=_RULES,
    custom_calls=_CUSTOM_CALLS,
    composites=_COMPOSITES,
    dtype_of=dtype_of,
)
