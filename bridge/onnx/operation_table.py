"""Which operations of StableHLO become operations of ONNX, and by which rule.

What is not in here is refused: complex numbers and FFTs, collectives, what talks to the host, and
custom calls of vendors' libraries. Linear algebra has been replaced by other operations before
(`xla_call_module.passes.linear_algebra`). Integers of few bits and small floats go by the same
rules, in a wider dtype (`bridge.onnx.graph.storage_dtypes`), and what they make is fitted
(`bridge.onnx.arithmetic.narrow`).
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.onnx import composite_rules as composites
from bridge.onnx import custom_call_rules as custom_calls
from bridge.onnx.arithmetic import (
    batch_norms,
    bitcasts,
    bits,
    casts,
    comparisons,
    division,
    elementwise,
    random,
    reductions,
)
from bridge.onnx.arrays import (
    broadcasting,
    dynamic_slicing,
    gathers,
    scatters,
    shapes,
    slicing,
    sorting,
)
from bridge.onnx.arrays import constant_values as constants
from bridge.onnx.graph.rules import Rule
from bridge.onnx.loops import control_flow, loops
from bridge.onnx.windows import convolutions, dots, windows

__all__ = ["COMPOSITES", "CUSTOM_CALLS", "RULES"]

_FAMILIES = (
    batch_norms,
    bitcasts,
    bits,
    broadcasting,
    casts,
    comparisons,
    constants,
    convolutions,
    control_flow,
    division,
    dots,
    dynamic_slicing,
    elementwise,
    gathers,
    loops,
    random,
    reductions,
    scatters,
    shapes,
    slicing,
    sorting,
    windows,
)

# For each operation of StableHLO.
RULES: Mapping[str, Rule] = {
    name: rule for family in _FAMILIES for name, rule in sorted(family.RULES.items())
} | custom_calls.OPERATIONS
# For each composite; others are computed by what they say that they are made of.
COMPOSITES = composites.RULES
# For each target of a `stablehlo.custom_call`.
CUSTOM_CALLS: Mapping[str, Rule] = custom_calls.RULES
