"""The table of the rules by which operations of StableHLO become TensorFlow's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.core_ops import (
    branches,
    collectives,
    dots,
    elementary,
    gathers,
    scatters,
    shapes,
    slicing,
    windows,
)
from bridge.core_ops.decompositions.decomposition import COMPOSED_OPERATIONS
from bridge.core_ops.decompositions.narrow_types import NARROW_TYPES_IN_WIDER
from bridge.core_ops.decompositions.random_bits import RANDOM_BITS_AS_INTEGERS
from bridge.core_ops.stablehlo_operation import Emit, GraphTarget, Operation, Rule, identity
from bridge.core_ops.windows import dynamic_reduce_window
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations import (
    bits,
    convolutions,
    elementwise,
    fourier,
    linear_algebra,
    loops,
    pooling,
    reductions,
    sorting,
)
from bridge.tf_operations.operation_graph import Graph
from bridge.tf_operations.signatures import has_kernel
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

_FAMILIES = (
    bits, branches, collectives, convolutions, dots, elementwise, fourier, gathers, linear_algebra,
    loops, reductions, scatters, shapes, slicing, sorting, windows, pooling,
)  # fmt: skip


def _dtype_of(element: str, *, where: str) -> np.dtype[Any]:
    """Return the dtype of a StableHLO element type."""
    for dtype in DTYPES:
        if dtype.mlir == element:
            return dtype.numpy
    raise DtypeError(
        f"{where}: TensorFlow has no operations for elements of type {element}. To do: convert it "
        "to a wider dtype before the export."
    )


def _assert(graph: Graph, op: Operation) -> Sequence[Value]:
    """Assert what the export asks of sizes."""
    inputs = [graph.expand(value) for value in op.operands]
    made = graph.node("Assert", inputs, shape=(), message=op.text("error_message"))
    graph.assertions.append(made.name)
    return ()


def _native(op_type: str) -> Emit:
    """The composite as one operation, where TensorFlow has a kernel for its dtype."""

    def emit(graph: Graph, op: Operation) -> Value | None:
        if op.result.dtype.kind == "c" or not has_kernel(op_type, op.result.dtype):
            return None
        return nodes.elementwise(graph, op_type, *op.operands)

    return emit


_RULES: Mapping[str, Rule] = {
    name: rule for family in _FAMILIES for name, rule in family.RULES.items()
}
_CUSTOM_CALLS: Mapping[str, Rule] = {
    **linear_algebra.CUSTOM_CALLS,
    **sorting.SORTS.custom_calls(),
    "Sharding": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "annotate_device_placement": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "xla.sdy.FuncResultSharding": Rule(identity, CUSTOM_CALL_ATTRIBUTES, expand=False),
    "mhlo.tan": Rule(elementary.native("Tan"), CUSTOM_CALL_ATTRIBUTES, expand=False),
    "shape_assertion": Rule(lambda *_: (), CUSTOM_CALL_ATTRIBUTES, expand=False),
    "stablehlo.dynamic_reduce_window": Rule(
        dynamic_reduce_window, CUSTOM_CALL_ATTRIBUTES, expand=False
    ),
}
# Those that TensorFlow computes as precisely; all others are computed by their decompositions.
_COMPOSITES: Mapping[str, Rule] = {
    "chlo.erf": Rule(elementwise.erf, expand=False),
    "chlo.top_k": Rule(sorting.SORTS.top_k, expand=False),
    **{
        f"chlo.{name}": Rule(_native(name.capitalize()), expand=False)
        for name in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "cosh",
            "erfc",
            "sinh",
        )
    },
}

# What is decomposed before.
DECOMPOSITIONS = (COMPOSED_OPERATIONS, RANDOM_BITS_AS_INTEGERS, NARROW_TYPES_IN_WIDER)

TARGET = GraphTarget(
    name="TensorFlow",
    rules=_RULES,
    custom_calls=_CUSTOM_CALLS,
    composites=_COMPOSITES,
    dtype_of=_dtype_of,
)
# The same for a module of assertions alone, which the walk of the whole module leaves out: there
# the sizes are taken for those that they have to be.
ASSERTIONS = dataclasses.replace(
    TARGET,
    custom_calls={
        **_CUSTOM_CALLS,
        "shape_assertion": Rule(_assert, CUSTOM_CALL_ATTRIBUTES, expand=False),
    },
)
