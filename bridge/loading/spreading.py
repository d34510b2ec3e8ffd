"""What TensorFlow made around calls for several devices, over a mesh as the calls say.

The `Exported` of such a function is made for one device. Where an argument or result of it is one
of a call, it lies as that call's module has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jax import export
from jax.sharding import AbstractMesh, NamedSharding

from bridge.core._jax import Shardings, map_orders, replace_shardings
from savedmodel.model import Cast, Output, Signature, Value
from xla_call_module.analyses.module_shardings import read_module_shardings
from xla_call_module.call import CallModule
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.array_sharding import (
    REPLICATED,
    TILED,
    DimAxes,
    Placement,
    Sharding,
    name_axes,
    place,
)
from xla_call_module.shardings.sharding_jax import mesh_from_jax, sharding_to_jax
from xla_call_module.stablehlo.modules import open_module

__all__ = ["on_one_device", "spread"]

_Found = tuple[Sharding | None, ...]


def on_one_device(exported: export.Exported) -> export.Exported:
    """The same function for one device; its module's shardings have no meaning there."""
    return exported if exported.nr_devices == 1 else map_orders(exported, _without_shardings)


def _without_shardings(exported: export.Exported) -> export.Exported:
    nothing = ((None,) * len(exported.in_avals), (None,) * len(exported.out_avals))
    return dataclasses.replace(replace_shardings(exported, *nothing), nr_devices=1)


def spread(
    exported: export.Exported,
    arguments: Sequence[Value],
    results: Sequence[Value],
    signature: Signature,
    mesh: AbstractMesh,
) -> export.Exported:
    """The same function for the devices that the calls in it are for.

    Args:
        exported: made for one device.
        arguments: what its flat arguments are in the signature.
        results: the same for its results.
        signature: the signature.
        mesh: the one that it is loaded for. Shardings without names are by its axes.

    Raises:
        ShardingError: shardings without names are none by the axes of this mesh; the calls are for
            several meshes.
    """
    shardings = [_shardings_of(function.call) for function in signature.functions]
    count = max(number for number, _, _ in shardings)
    if count == 1:
        return exported
    known: dict[Value, Sharding | None] = {}
    called = zip(signature.functions, shardings, strict=True)
    for number, (function, (_, of_operands, of_results)) in enumerate(called):
        for value, sharding in zip(function.operands, of_operands, strict=True):
            known.setdefault(_source(value), sharding)
        known |= {Output(number, index): sharding for index, sharding in enumerate(of_results)}
    arguments_on, results_on = (
        tuple(_to_named(known.get(_source(v)), exported.fun_name, count, mesh) for v in values)
        for values in (arguments, results)
    )
    _check_meshes(exported.fun_name, (*arguments_on, *results_on))
    changed = replace_shardings(exported, arguments_on, results_on)
    return dataclasses.replace(changed, nr_devices=count)


def _shardings_of(call: CallModule) -> tuple[int, _Found, _Found]:
    """For how many devices a call is, and how its operands and results lie."""
    if call.exported:
        operands = tuple(spec.sharding for spec in call.operands)
        return call.nr_devices, operands, tuple(spec.sharding for spec in call.results)
    with open_module(call.module) as module:
        found = read_module_shardings(module)
    return found.nr_devices, found.arguments, found.results


def _source(value: Value) -> Value:
    """What a value is but for its dtype."""
    while isinstance(value, Cast):
        value = value.source
    return value


def _to_named(
    sharding: Sharding | None, where: str, count: int, mesh: AbstractMesh
) -> NamedSharding | None:
    if sharding is None or sharding.kind not in (REPLICATED, TILED):
        return None
    placement = sharding.placement
    if placement is None or not placement.mesh.axes:
        placement = _placement_on(mesh, sharding, where, count)
    # JAX has no word for what is split and may be split further.
    dims = tuple(DimAxes(dim.names) for dim in placement.dims)
    named = sharding_to_jax(place(dataclasses.replace(placement, dims=dims), len(dims)))
    return named if isinstance(named, NamedSharding) else None


def _placement_on(mesh: AbstractMesh, sharding: Sharding, where: str, count: int) -> Placement:
    try:
        if mesh.size == count:
            return name_axes(sharding, mesh_from_jax(mesh), sharding.rank or 0)
    except ShardingError as error:
        raise _other_mesh(where, count, mesh) from error
    raise _other_mesh(where, count, mesh)


def _other_mesh(where: str, count: int, mesh: AbstractMesh) -> ShardingError:
    axes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return ShardingError(
        f"{where} was exported for {count} devices, without names for the axes of their mesh, and "
        f"its shardings are none by the axes of the mesh {axes}. To do: take a mesh of "
        f"{count} devices with axes of the sizes that it was exported for, in their order; or load "
        "it without a mesh, for one device."
    )


def _check_meshes(where: str, shardings: Shardings) -> None:
    found = {sharding.mesh for sharding in shardings if sharding is not None}
    if len(found) > 1:
        texts = " and ".join(str(dict(mesh.shape)) for mesh in found)
        raise ShardingError(
            f"The calls in {where} are for the meshes {texts}. To do: load it without a mesh, for "
            "one device."
        )
