"""The tables of the rules by which operations of StableHLO become operations of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

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
from bridge.lifting.known_values import LiftedValue, as_array
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule


@dataclass(frozen=True, slots=True)
class LiftingTable:
    """The rules of one translation of StableHLO to operations of JAX.

    Attributes:
        rules: the rule of each operation.
        custom_calls: the rule of each target of a custom call.
        composites: those of composites; all others are computed by their decompositions.
        operation: the class of what a rule sees of an operation.
        has_functions: whether functions stay functions, and those that JAX composes of operations
            have its derivatives. Without, all is written out as it stands.
        may_compose: whether rules may make composites, which not every JAX lowers everywhere.
        to_array: makes an array of a value, as the rules have it.
        around: a context in which the rule of an operation runs; None for the name stack and the
            line in the source of each operation.
        target: the name of what understands the operations, for messages.
    """

    rules: Mapping[str, LiftingRule]
    custom_calls: Mapping[str, LiftingRule]
    composites: Mapping[str, LiftingRule]
    operation: type[LiftedOperation] = LiftedOperation
    has_functions: bool = True
    may_compose: bool = True
    to_array: Callable[[LiftedValue], Any] = as_array
    around: Callable[[Any], AbstractContextManager[Any]] | None = None
    target: str = "JAX"


_FAMILIES = (
    collective_primitives, control_primitives, elementwise_primitives, indexing_primitives,
    linalg_primitives, normalization_primitives, product_primitives, random_primitives,
    reduction_primitives, shape_primitives, sharding_primitives, sorting_primitives,
    window_primitives,
)  # fmt: skip

# Each operation becomes the primitive of JAX that is lowered to it.
JAX_TABLE = LiftingTable(
    rules={name: rule for family in _FAMILIES for name, rule in family.RULES.items()},
    custom_calls={
        **custom_call_primitives.CUSTOM_CALLS,
        **sharding_primitives.CUSTOM_CALLS,
        **linalg_primitives.CUSTOM_CALLS,
        **fourier_calls.CUSTOM_CALLS,
        **sorting_primitives.CUSTOM_CALLS,
        **window_primitives.CUSTOM_CALLS,
        **random_primitives.CUSTOM_CALLS,
    },
    composites={**custom_call_primitives.COMPOSITES},
)
# For what TensorFlow lowered: mapped, each element has the random bits of its own seed.
TENSORFLOW_TABLE = replace(
    JAX_TABLE,
    rules={**JAX_TABLE.rules, **random_primitives.MAPPED_RULES},
    custom_calls={**JAX_TABLE.custom_calls, **random_primitives.MAPPED_CUSTOM_CALLS},
)
# For a batch of one, which the constraints of the batch may exclude.
ROWS_TABLE = replace(
    TENSORFLOW_TABLE,
    custom_calls={**TENSORFLOW_TABLE.custom_calls, **custom_call_primitives.WITHOUT_ASSERTIONS},
)
