"""The operations of a module that need several devices.

What XLA partitions by itself computes on whole arrays; where there is one device, nothing is
partitioned and the shardings mean nothing. TensorFlow compiles for one CPU or GPU in that way. What
runs on each device alone (`jax.shard_map`) has the shapes of its parts in the module, and talks to
the other devices: there TensorFlow ends in an error that names neither, or computes as if each
device were the only one.

Source: https://openxla.org/shardy/sdy_dialect, `manual_computation`; xla/service/spmd/
spmd_partitioner.cc, `SPMDFullToShardShape`.
"""

from __future__ import annotations

from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.errors import ShardingError
from xla_call_module.stablehlo.modules import custom_call_target, open_module, walk
from xla_call_module.stablehlo.operation_locations import describe_location

_MANUAL = "sdy.manual_computation"
_MANUAL_CALLS = frozenset({
    "SPMDFullToShardShape", "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
})  # fmt: skip
_COLLECTIVES = frozenset({
    "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all",
    "stablehlo.collective_broadcast", "stablehlo.collective_permute", "stablehlo.partition_id",
    "stablehlo.recv", "stablehlo.reduce_scatter", "stablehlo.replica_id", "stablehlo.send",
})  # fmt: skip


def operation_of_several_devices(call: CallModule, module: Any) -> str:
    """Return the first operation that runs on each device alone, with its place; empty for none."""
    if call.nr_devices < 2:
        return ""
    for operation in walk(module):
        if (name := name_of_several_devices(operation)) is not None:
            return f"{name} at {describe_location(operation)}"
    return ""


def check_one_device(call: CallModule, *, is_alone: bool = True) -> None:
    """Refuse a call that does not run on one device."""
    if call.nr_devices < 2:
        return
    with open_module(call.module) as module:
        alone = operation_of_several_devices(call, module)
    if alone:
        here = "TensorFlow runs it on one device"
        runs = f"load its file with bridge.load(path, mesh=...) over {call.nr_devices} devices"
        if not is_alone:
            here = "the operations of TensorFlow around it are for one device"
            runs = f"save it with bridge.save, whose file JAX runs over {call.nr_devices} devices"
        raise ShardingError(
            f"{call.name} was exported for {call.nr_devices} devices, and {alone} runs on each of "
            f"them separately; {here}. To do: run it in JAX, or {runs}; or export it for a mesh of "
            "one device, or without jax.shard_map, so that the arrays stay whole."
        )


def name_of_several_devices(operation: Any) -> str | None:
    """Return the name of an operation that runs on each device alone, for an error."""
    if operation.name == _MANUAL:
        return "jax.shard_map"
    if operation.name in _COLLECTIVES:
        return str(operation.name)
    return "jax.shard_map" if custom_call_target(operation) in _MANUAL_CALLS else None
