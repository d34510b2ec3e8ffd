"""Collectives, device numbers and shardings of a module for one device, which do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.custom_call_primitives import CUSTOM_CALLS as OF_JAX
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule

__all__ = ["CUSTOM_CALLS", "RULES"]

_DEVICES = ("replica_groups", "source_target_pairs")
# The attributes of each collective besides its groups of devices.
_COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "all_gather": ("all_gather_dim", "use_global_device_ids"),
    "all_reduce": ("use_global_device_ids",),
    "all_to_all": ("concat_dimension", "split_count", "split_dimension"),
    "collective_broadcast": (),
    "collective_permute": (),
    "reduce_scatter": ("scatter_dimension", "use_global_device_ids"),
}


def _collective(op: LiftedOperation) -> Any:
    """Return the operands: there are no other devices to combine them with."""
    is_permutation = op.has("source_target_pairs")
    groups = np.asarray(op.raw.attributes[_DEVICES[is_permutation]])
    if groups.dtype.kind != "i" or groups.any() or (is_permutation and not groups.size):
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
    **{
        f"stablehlo.{name}": LiftingRule(_collective, (*read, *_DEVICES, "channel_handle"))
        for name, read in _COLLECTIVES.items()
    },
    "sdy.sharding_constraint": LiftingRule(_first, ("sharding",)),
    "stablehlo.partition_id": LiftingRule(_number),
    "stablehlo.replica_id": LiftingRule(_number),
}
CUSTOM_CALLS = {"Sharding": OF_JAX["LayoutConstraint"]}
