"""Custom calls that JAX writes itself, and composites of CHLO's operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.known_values import dimensions_of
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule, single
from bridge.lifting.sorting_primitives import top_k
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES


def _shape_assertion(op: LiftedOperation) -> Any:
    """Check an assertion of sizes, which are known while JAX traces."""
    holds = op.operands[0]
    if not isinstance(holds, np.ndarray):
        op.refuse(
            "it asserts something that may be false for some sizes of the arguments",
            "export with the constraints of the artifact's dimensions, or with concrete sizes",
        )
    if not holds.all():
        raise StructureError(_message(op))
    return []


def _message(op: LiftedOperation) -> str:
    """Return the message of an assertion, with the sizes that it names by numbers."""
    message = op.text("error_message")
    for number, operand in enumerate(op.operands[1:]):
        known = dimensions_of(operand) or ("?",)
        message = message.replace(f"{{{number}}}", ", ".join(map(str, known)))
    return message


def _nothing(op: LiftedOperation) -> Any:
    """Leave out an assertion, such as those of results in StableHLO's own tests."""
    del op
    return []


def _empty(op: LiftedOperation) -> Any:
    """Return zeros for what `jax.lax.empty` leaves undefined."""
    return lax.full(op.shape, 0, op.dtype)


def _identity(op: LiftedOperation) -> Any:
    return op.operands[0]


# CHLO's operations of one array that JAX has by the same names.
_UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf",
    "erf_inv", "erfc", "lgamma", "sinh", "tan",
)  # fmt: skip
_COMPOSITE_ATTRIBUTES = ("composite_attributes", "decomposition", "name", "version")

COMPOSITES = {
    **{f"chlo.{name}": LiftingRule(single(getattr(lax, name))) for name in _UNARY},
    "chlo.top_k": LiftingRule(top_k, _COMPOSITE_ATTRIBUTES),
}
CUSTOM_CALLS = {
    **{
        f"mhlo.{name}": LiftingRule(single(getattr(lax, name)), CUSTOM_CALL_ATTRIBUTES)
        for name in _UNARY
    },
    "AllocateBuffer": LiftingRule(_empty, CUSTOM_CALL_ATTRIBUTES),
    "LayoutConstraint": LiftingRule(_identity, CUSTOM_CALL_ATTRIBUTES),
    **{
        f"check.{name}": LiftingRule(_nothing, CUSTOM_CALL_ATTRIBUTES)
        for name in ("eq", "expect_almost_eq", "expect_close", "expect_eq")
    },
    "shape_assertion": LiftingRule(_shape_assertion, CUSTOM_CALL_ATTRIBUTES),
    "annotate_device_placement": LiftingRule(_identity, CUSTOM_CALL_ATTRIBUTES),
    "xla.sdy.FuncResultSharding": LiftingRule(_identity, CUSTOM_CALL_ATTRIBUTES),
}
# For a size that the assertions exclude.
WITHOUT_ASSERTIONS = {"shape_assertion": LiftingRule(_nothing, CUSTOM_CALL_ATTRIBUTES)}
