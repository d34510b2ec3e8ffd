"""Which operations of StableHLO become operations of ONNX, and by which rule.

What is not in here is refused: complex numbers and FFTs, collectives, what talks to the host, and
custom calls of vendors' libraries. Linear algebra has been replaced by other operations before
(`xla_call_module.linalg`). Integers of few bits and small floats go by the same rules, in a wider
dtype (`bridge.onnx.held`), and what they make is fitted (`bridge.onnx.narrow`).
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.onnx import (
    batch_norms,
    bitcasts,
    bits,
    broadcasting,
    casts,
    comparisons,
    composites,
    constants,
    control_flow,
    convolutions,
    custom_calls,
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
from bridge.onnx.rules import Rule

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
