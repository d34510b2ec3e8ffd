"""The table of the rules by which operations of StableHLO become those that LiteRT executes."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.core_ops.decompositions import control_flow
from bridge.lifting import custom_call_primitives
from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.lifting_table import JAX_TABLE, LiftingTable
from bridge.litert.lowering import (
    arithmetic_lowerings,
    indexing_lowerings,
    kernel_lowerings,
    product_lowerings,
    reduction_lowerings,
    shape_lowerings,
    sorting_lowerings,
    window_lowerings,
)
from bridge.litert.lowering.lowered_operation import LoweredOperation, moved
from bridge.litert.lowering.storage_dtypes import to_storage

_MOVING = {
    **shape_lowerings.RULES,
    "stablehlo.select": arithmetic_lowerings.RULES["stablehlo.select"],
}
_COMPUTING = {
    **arithmetic_lowerings.RULES,
    **product_lowerings.RULES,
    **reduction_lowerings.RULES,
    **window_lowerings.RULES,
}


def _moved(rules: Mapping[str, LiftingRule]) -> dict[str, LiftingRule]:
    """Return the rules of operations that compute."""
    return {name: LiftingRule(moved(rule.lift), rule.attributes) for name, rule in rules.items()}


_RULES = {
    **JAX_TABLE.rules,
    **_moved(_COMPUTING),
    **_MOVING,
    **_moved(indexing_lowerings.RULES),  # two of which move elements elsewhere
    **control_flow.RULES,
    **sorting_lowerings.RULES,
}
LITERT_TABLE = LiftingTable(
    rules=kernel_lowerings.with_kernels(_RULES),
    custom_calls={
        **custom_call_primitives.CUSTOM_CALLS,
        **sorting_lowerings.CUSTOM_CALLS,
        # A model runs on one device.
        "Sharding": custom_call_primitives.CUSTOM_CALLS["LayoutConstraint"],
        **window_lowerings.CUSTOM_CALLS,
    },
    composites=sorting_lowerings.COMPOSITES,
    operation=LoweredOperation,
    has_functions=False,
    to_array=to_storage,
    target="LiteRT",
)
