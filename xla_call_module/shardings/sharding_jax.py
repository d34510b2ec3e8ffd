"""Shardings from and to the classes of `jax.sharding`, and those of an `Exported`.

Devices are numbered by their place in the sharding, as the module numbers them, not by their ids:
a mesh of other devices is the same sharding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from xla_call_module._jax import (
    hlo_proto_of,
    logical_device_ids,
    make_gspmd_sharding,
    named_shardings,
)
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.array_sharding import (
    MAXIMAL,
    REPLICATED,
    TILED,
    Sharding,
    maximal,
    place,
)
from xla_call_module.shardings.device_order import listed_order
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_protos import sharding_from_proto, sharding_to_proto

__all__ = [
    "exported_shardings",
    "mesh_from_jax",
    "mesh_to_jax",
    "sharding_from_jax",
    "sharding_to_jax",
]

_AXIS_TYPES = {
    "auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Manual,
}  # fmt: skip


def exported_shardings(
    exported: export.Exported, ranks: Sequence[int], result_ranks: Sequence[int]
) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
    """The shardings of the flat arguments and results of an `Exported`; None where it has none.

    Both are read: the named ones that JAX has since 0.9, and those of the compiler before.

    Args:
        exported: any.
        ranks: of the arguments as the module takes them, key data for keys.
        result_ranks: the same for the results.

    Raises:
        FormatError, ShardingError: one is of a form that is not known.
    """
    named_in, named_out = named_shardings(exported)
    sides = (
        (named_in, exported.in_shardings_hlo, ranks),
        (named_out, exported.out_shardings_hlo, result_ranks),
    )
    of_arguments, of_results = (
        tuple(_of_exported(*of_one) for of_one in zip(*of_all, strict=True)) for of_all in sides
    )
    return of_arguments, of_results


def _of_exported(named: Any, hlo: Any, rank: int) -> Sharding | None:
    if named is not None:
        return _from_named(named, rank)
    if hlo is None:
        return None
    return sharding_from_proto(hlo.to_proto().SerializeToString()).of_rank(rank)


def sharding_from_jax(sharding: jax.sharding.Sharding, shape: Sequence[Any]) -> Sharding:
    """Return the value of a sharding of JAX, of any class.

    Args:
        sharding: by the names of a mesh, of one device, or of the compiler; the older
            `PositionalSharding` and `PmapSharding` too where JAX has them.
        shape: of the array.

    Raises:
        FormatError: it is of a form that is not known.
        ShardingError: it is for arrays of another rank.

    Example:
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
        >>> mesh = AbstractMesh((4, 2), ("data", "model"))
        >>> sharding = sharding_from_jax(NamedSharding(mesh, PartitionSpec("data")), (8, 3))
        >>> str(sharding), sharding.parts(2)
        ('(data) on the mesh data 4 x model 2', (4, 1))
    """
    if isinstance(sharding, NamedSharding):
        return _from_named(sharding, len(shape))
    memory = getattr(sharding, "memory_kind", None) or ""
    if isinstance(sharding, SingleDeviceSharding):
        device: Any = next(iter(sharding.device_set))  # the stub of its class lacks `id`
        return replace(maximal(device.id), memory=memory)
    proto = hlo_proto_of(sharding, len(shape))
    if proto is not None:
        return replace(sharding_from_proto(proto), memory=memory)
    indices: Mapping[Any, Any] = sharding.devices_indices_map(tuple(shape))
    return replace(_from_indices(list(indices.values()), shape), memory=memory)


def sharding_to_jax(
    sharding: Sharding,
    *,
    mesh: jax.sharding.Mesh | AbstractMesh | None = None,
    devices: Sequence[jax.Device] = (),
) -> jax.sharding.Sharding:
    """Return the sharding as JAX has it.

    Args:
        sharding: any but a tuple.
        mesh: for one by names, where the array is to lie; by default no devices in particular, a
            `jax.sharding.AbstractMesh`.
        devices: for one without names, the devices in the order of their numbers.

    Returns:
        A `NamedSharding`, a `SingleDeviceSharding`, or what JAX has for the compiler's own form.

    Raises:
        ShardingError: it has no such form, or devices are missing.
    """
    memory = sharding.memory or None
    if sharding.placement is not None and sharding.placement.mesh.axes:
        placed = mesh if mesh is not None else mesh_to_jax(sharding.placement.mesh)
        return NamedSharding(placed, _to_spec(sharding.placement), memory_kind=memory)
    count = sharding.num_devices
    if sharding.kind == MAXIMAL and sharding.order is not None:
        wanted = sharding.order.devices()[0]
        by_number = {device.id: device for device in devices}
        if wanted in by_number:
            return SingleDeviceSharding(by_number[wanted], memory_kind=memory)
    elif devices and count in (None, len(devices)):
        made: jax.sharding.Sharding = make_gspmd_sharding(
            tuple(devices), sharding_to_proto(sharding), memory
        )
        return made
    raise ShardingError(
        f"The sharding {sharding} is for {count or 'some'} devices, and {len(devices)} were given. "
        "To do: pass the devices that it numbers."
    )


def mesh_from_jax(mesh: jax.sharding.Mesh | AbstractMesh) -> Mesh:
    """The axes of a mesh, with their types; which devices are in it is not said."""
    kinds = {kind: name for name, kind in _AXIS_TYPES.items()}
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return Mesh(tuple(MeshAxis(str(name), int(size), kinds[kind]) for name, size, kind in axes))


def mesh_to_jax(mesh: Mesh) -> AbstractMesh:
    """The mesh of no devices in particular.

    Example:
        >>> str(mesh_to_jax(Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))).axis_names)
        "('data', 'model')"
    """
    kinds = tuple(_AXIS_TYPES[axis.kind] for axis in mesh.axes)
    sizes, names = (tuple(getattr(axis, key) for axis in mesh.axes) for key in ("size", "name"))
    return AbstractMesh(sizes, names, axis_types=kinds)


def _from_named(sharding: Any, rank: int) -> Sharding:
    mesh = replace(mesh_from_jax(sharding.mesh), devices=logical_device_ids(sharding))
    spec = sharding.spec
    _check_reduction(spec)
    placement = Placement(
        mesh,
        tuple(map(_dim_from_jax, getattr(spec, "partitions", spec))),
        # JAX has had these since 0.8.
        unreduced=_in_order(mesh, getattr(spec, "unreduced", ())),
        reduced=_in_order(mesh, getattr(spec, "reduced", ())),
    )
    return place(placement, rank, memory=sharding.memory_kind or "")


def _check_reduction(spec: Any) -> None:
    """Refuse parts of which the largest or the smallest is meant; JAX 0.10 has none."""
    kind = getattr(spec, "unreduced_kind", None)
    if kind is not None and kind.name != "sum":
        raise ShardingError(
            f"{spec} is about parts of which the {kind.name} is meant; known are those that are "
            "summands. To do: export the function with arrays that are whole or split."
        )


def _in_order(mesh: Mesh, names: Any) -> tuple[str, ...]:
    return tuple(axis.name for axis in mesh.axes if axis.name in names)


def _dim_from_jax(entry: Any) -> DimAxes:
    if entry is PartitionSpec.UNCONSTRAINED:
        return DimAxes(is_open=True)
    names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    return DimAxes(tuple(map(str, names)))


def _to_spec(placement: Placement) -> PartitionSpec:
    sets = {"unreduced": placement.unreduced, "reduced": placement.reduced}
    given: Any = {key: frozenset(names) for key, names in sets.items() if names}
    return PartitionSpec(*map(_dim_to_jax, placement.dims), **given)


def _dim_to_jax(dim: DimAxes) -> Any:
    if dim.is_open and dim.names:
        raise ShardingError(
            f"A dimension is split by {dim.names} and open to more, which JAX cannot say. To do: "
            "close it."
        )
    if dim.is_open:
        return PartitionSpec.UNCONSTRAINED
    return None if not dim.names else dim.names[0] if len(dim.names) == 1 else dim.names


def _from_indices(indices: Sequence[Sequence[Any]], shape: Sequence[int]) -> Sharding:
    """The tiles of an array of which the part of each device is known, as by `jax.pmap`."""
    starts = [tuple(map(_start, index)) for index in indices]
    known = [sorted({start[axis] for start in starts}) for axis in range(len(shape))]
    parts = [len(offsets) for offsets in known]
    copies = len(starts) // math.prod(parts)
    tiles = [tuple(map(list.index, known, start)) for start in starts]
    order = sorted(range(len(starts)), key=lambda device: tiles[device])
    if math.prod(parts) == 1:
        return Sharding()
    subgroups = (REPLICATED,) if copies > 1 else ()
    sizes = (*parts, copies) if copies > 1 else tuple(parts)
    return Sharding(TILED, sizes, listed_order(order), subgroups)


def _start(index: Any) -> int:
    return (index.start or 0) if isinstance(index, slice) else int(index)
