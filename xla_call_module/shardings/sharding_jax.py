"""Shardings from and to `jax.sharding.NamedSharding`, and those of an `Exported`.

Devices are numbered by their place in the sharding, as the module numbers them, not by their ids:
a mesh of other devices is the same sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from xla_call_module._jax import (
    hlo_shardings,
    logical_device_ids,
    named_shardings,
    with_logical_device_ids,
)
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.array_sharding import Sharding, place
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_protos import sharding_from_proto

_AXIS_TYPES = {
    "auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Manual,
}  # fmt: skip


def exported_shardings(
    exported: export.Exported, ranks: Sequence[int], result_ranks: Sequence[int]
) -> tuple[tuple[Sharding | None, ...], tuple[Sharding | None, ...]]:
    """Return the shardings of the flat arguments and results of an `Exported`; None for none.

    Both are read: the named ones that JAX has since 0.9, and those of the compiler before.
    """
    named, hlo = named_shardings(exported), hlo_shardings(exported)
    sides = ((named[0], hlo[0], ranks), (named[1], hlo[1], result_ranks))
    of_arguments, of_results = (
        tuple(_of_exported(*of_one) for of_one in zip(*of_all, strict=True)) for of_all in sides
    )
    return of_arguments, of_results


def _of_exported(named: Any, hlo: Any, rank: int) -> Sharding | None:
    if named is not None:
        return sharding_from_jax(named, rank)
    if hlo is None:
        return None
    return sharding_from_proto(hlo.to_proto().SerializeToString()).of_rank(rank)


def sharding_from_jax(sharding: NamedSharding, rank: int) -> Sharding:
    """Return the value of a sharding by the names of a mesh's axes.

    Example:
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
        >>> mesh = AbstractMesh((4, 2), ("data", "model"))
        >>> sharding = sharding_from_jax(NamedSharding(mesh, PartitionSpec("data")), 2)
        >>> str(sharding), sharding.parts(2)
        ('(data) on the mesh data 4 x model 2', (4, 1))
    """
    mesh = replace(mesh_from_jax(sharding.mesh), devices=logical_device_ids(sharding))
    spec: Any = sharding.spec
    _check_reduction(spec)
    placement = Placement(
        mesh,
        tuple(map(_dim_from_jax, getattr(spec, "partitions", spec))),
        # JAX has had these since 0.8.
        unreduced=_in_order(mesh, getattr(spec, "unreduced", ())),
        reduced=_in_order(mesh, getattr(spec, "reduced", ())),
    )
    return place(placement, rank, memory=sharding.memory_kind or "")


def sharding_to_jax(sharding: Sharding) -> NamedSharding:
    """Return a sharding as JAX has it, on a mesh of no devices in particular, with their order."""
    placement = sharding.placement
    if placement is None:
        raise ShardingError(
            f"The sharding {sharding} does not say the names of the mesh's axes. To do: name them "
            "by the mesh that it was made for."
        )
    sets = {"unreduced": placement.unreduced, "reduced": placement.reduced}
    given: Any = {key: frozenset(names) for key, names in sets.items() if names}
    spec = PartitionSpec(*map(_dim_to_jax, placement.dims), **given)
    mesh = placement.mesh
    named = NamedSharding(mesh_to_jax(mesh), spec, memory_kind=sharding.memory or None)
    # A mesh without axes is one device, which JAX does not number.
    return with_logical_device_ids(named, mesh.devices if mesh.axes else ())  # type: ignore[no-any-return]


def mesh_from_jax(mesh: jax.sharding.Mesh | AbstractMesh) -> Mesh:
    """Return the axes of a mesh, with their types, and without its devices."""
    kinds = {kind: name for name, kind in _AXIS_TYPES.items()}
    axes = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return Mesh(tuple(MeshAxis(str(name), int(size), kinds[kind]) for name, size, kind in axes))


def mesh_to_jax(mesh: Mesh) -> AbstractMesh:
    """Return the mesh of no devices in particular.

    Example:
        >>> str(mesh_to_jax(Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))).axis_names)
        "('data', 'model')"
    """
    kinds = tuple(_AXIS_TYPES[axis.kind] for axis in mesh.axes)
    sizes, names = (tuple(getattr(axis, key) for axis in mesh.axes) for key in ("size", "name"))
    return AbstractMesh(sizes, names, axis_types=kinds)


def _check_reduction(spec: Any) -> None:
    """Refuse parts of which the largest or the smallest is meant; JAX 0.10 has none."""
    kind = getattr(spec, "unreduced_kind", None)
    if kind is not None and kind.name != "sum":
        raise ShardingError(
            f"{spec} has parts that are reduced by {kind.name}; only sums are supported. To do: "
            "export the function with arrays that are whole or split."
        )


def _in_order(mesh: Mesh, names: Any) -> tuple[str, ...]:
    return tuple(axis.name for axis in mesh.axes if axis.name in names)


def _dim_from_jax(entry: Any) -> DimAxes:
    if entry is PartitionSpec.UNCONSTRAINED:
        return DimAxes(is_open=True)
    names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
    return DimAxes(tuple(map(str, names)))


def _dim_to_jax(dim: DimAxes) -> Any:
    if dim.is_open and dim.names:
        raise ShardingError(
            f"A dimension is split by {dim.names} and open to more, which JAX cannot express. To "
            "do: close it."
        )
    if dim.is_open:
        return PartitionSpec.UNCONSTRAINED
    return None if not dim.names else dim.names[0] if len(dim.names) == 1 else dim.names
