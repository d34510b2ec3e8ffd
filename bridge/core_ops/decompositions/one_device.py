"""Collectives, device numbers and shardings of a module for one device, which do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from bridge.core_ops.collectives import COLLECTIVES, SHARDING_ATTRIBUTES, combines_devices
from bridge.lifting.custom_call_primitives import CUSTOM_CALLS as OF_JAX
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule


def _collective(op: LiftedOperation) -> Any:
    """Return the operands: there are no other devices to combine them with."""
    if combines_devices(op):
        op.refuse(
            "it is for several devices, and the module is for one",
            "export the function without a mesh, or with one of a single device",
        )
    pairs = zip(op.raw.operands, op.raw.results, strict=True)
    is_same = [operand.type == result.type for operand, result in pairs]
    return [
        operand if same else lax.convert_element_type(op.array(n), op.dtype_of(n))
        for n, (operand, same) in enumerate(zip(op.operands, is_same, strict=True))
    ]


def _first(op: LiftedOperation) -> Any:
    return op.operands[0]


def _number(op: LiftedOperation) -> Any:
    """Return 0, the number of the only device."""
    return np.zeros((), op.dtype)


RULES = {
    **{name: LiftingRule(_collective, read) for name, read in COLLECTIVES.items()},
    "sdy.sharding_constraint": LiftingRule(_first, SHARDING_ATTRIBUTES),
    "stablehlo.partition_id": LiftingRule(_number),
    "stablehlo.replica_id": LiftingRule(_number),
}
CUSTOM_CALLS = {"Sharding": OF_JAX["LayoutConstraint"]}
