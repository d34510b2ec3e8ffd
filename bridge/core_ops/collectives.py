"""Collectives, device numbers and shardings of a module for one device, which do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule, identity
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.stablehlo.attributes import Attributes

_DEVICES = ("replica_groups", "source_target_pairs")
# The attributes of each collective.
COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    f"stablehlo.{name}": (*read, *_DEVICES, "channel_handle")
    for name, read in {
        "all_gather": ("all_gather_dim", "use_global_device_ids"),
        "all_reduce": ("use_global_device_ids",),
        "all_to_all": ("concat_dimension", "split_count", "split_dimension"),
        "collective_broadcast": (),
        "collective_permute": (),
        "reduce_scatter": ("scatter_dimension", "use_global_device_ids"),
    }.items()
}
# Those of a sharding of Shardy.
SHARDING_ATTRIBUTES = ("sharding",)


def combines_devices(op: Attributes) -> bool:
    """Return whether a collective is for other devices than the first one."""
    is_permutation = op.has("source_target_pairs")
    groups = np.asarray(op.raw.attributes[_DEVICES[is_permutation]])
    return bool(groups.dtype.kind != "i" or groups.any() or (is_permutation and not groups.size))


def _collective(graph: TensorGraph, op: Operation) -> Sequence[Value]:
    """Return the operands: on one device there are no others to combine them with."""
    if combines_devices(op):
        op.refuse(
            f"it is for several devices, and {op.target.name} is for one",
            "export the function without a mesh, or with one of a single device",
        )
    pairs = zip(op.operands, op.results, strict=True)
    return [nodes.cast(graph, value, result.dtype) for value, result in pairs]


_DEVICE_NUMBER = Rule(lambda _, op: nodes.constant(0, op.result.dtype))  # there is one
RULES = {
    **{name: Rule(_collective, read, expand=False) for name, read in COLLECTIVES.items()},
    "sdy.sharding_constraint": Rule(identity, SHARDING_ATTRIBUTES, expand=False),
    "stablehlo.partition_id": _DEVICE_NUMBER,
    "stablehlo.replica_id": _DEVICE_NUMBER,
}
