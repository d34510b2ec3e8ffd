"""The table of the rules by which operations of StableHLO become operations of JAX."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.lifting import (
    collective_primitives,
    control_primitives,
    custom_call_primitives,
    elementwise_primitives,
    fourier_calls,
    indexing_primitives,
    linalg_primitives,
    normalization_primitives,
    product_primitives,
    random_primitives,
    reduction_primitives,
    shape_primitives,
    sharding_primitives,
    sorting_primitives,
    window_primitives,
)
from bridge.lifting.lifted_operation import LiftingRule

__all__ = ["COMPOSITES", "CUSTOM_CALLS", "RULES"]

_FAMILIES = (
    collective_primitives, control_primitives, elementwise_primitives, indexing_primitives,
    linalg_primitives, normalization_primitives, product_primitives, random_primitives,
    reduction_primitives, shape_primitives, sharding_primitives, sorting_primitives,
    window_primitives,
)  # fmt: skip

# The rule of each operation.
RULES: Mapping[str, LiftingRule] = {
    name: rule for family in _FAMILIES for name, rule in family.RULES.items()
}
# The rule of each target of a custom call.
CUSTOM_CALLS: Mapping[str, LiftingRule] = {
    **custom_call_primitives.CUSTOM_CALLS,
    **sharding_primitives.CUSTOM_CALLS,
    **linalg_primitives.CUSTOM_CALLS,
    **fourier_calls.CUSTOM_CALLS,
    **sorting_primitives.CUSTOM_CALLS,
    **window_primitives.CUSTOM_CALLS,
    **random_primitives.CUSTOM_CALLS,
}
# The composites that JAX has as primitives; all others are computed by their decompositions.
COMPOSITES: Mapping[str, LiftingRule] = {**custom_call_primitives.COMPOSITES}
