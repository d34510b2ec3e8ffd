"""The axes of the mesh that a module was exported for, on the mesh at hand.

What runs on each device alone has the shapes of the parts in it, and numbers that were computed of
them, such as the size of a mean. So on a mesh of other sizes it stays the program of one shard of
the mesh of the export, and it is the shards that are distributed: where there are fewer devices
along an axis, each computes several of them, by `jax.vmap` with a name for the axis; where there
are more, they compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType

from bridge.lifting.lifted_operation import LiftedOperation
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.mesh_placement import Mesh
from xla_call_module.shardings.sharding_jax import mesh_to_jax
from xla_call_module.shardings.shardy import mesh_from_shardy
from xla_call_module.stablehlo.attributes import symbol_name
from xla_call_module.stablehlo.serialized_shardings import shardy_meshes

JaxMesh = jax.sharding.Mesh | AbstractMesh


@dataclass(frozen=True, slots=True)
class ShardAxis:
    """The shards along one axis of the mesh of an export.

    Attributes:
        name: the name of the axis.
        size: the number of shards, which is its size at the export.
        each: how many of them each device at hand computes.
    """

    name: str
    size: int
    each: int

    @property
    def devices(self) -> int:
        """The number of groups of devices that compute different shards."""
        return self.size // self.each

    @property
    def mapped_name(self) -> str:
        """The name of the axis of `jax.vmap` along which the shards of one device are."""
        return f"{self.name} on one device"

    @property
    def outer(self) -> tuple[str, ...]:
        """The axis of the mesh by its name; empty if all shards are on each device."""
        return (self.name,) if self.devices > 1 else ()

    @property
    def inner(self) -> tuple[str, ...]:
        """The axis of `jax.vmap` by its name; empty if each device has one shard."""
        return (self.mapped_name,) if self.each > 1 else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of axes along which the shards are, the slowest first."""
        return self.outer + self.inner


def meshes_of_module(operation: Any) -> dict[str, Mesh]:
    """Return the meshes of the module that an operation is in, by their names."""
    while operation.parent is not None:
        operation = operation.parent
    meshes = shardy_meshes(operation.opview)
    return {symbol_name(mesh): mesh_from_shardy(mesh.attributes["mesh"]) for mesh in meshes}


def mesh_at_hand(mesh: JaxMesh | None, exported: Mesh) -> JaxMesh:
    """Return the mesh that a part of a module runs on, without devices where these are unknown."""
    concrete = mesh_of_context() or _automatic(mesh or mesh_to_jax(exported))
    missing = exported.shape.keys() - set(map(str, concrete.axis_names))
    if missing:
        raise ShardingError(
            f"The function was exported for a mesh with the axes {exported}, and the mesh at hand "
            f"has {dict(concrete.shape)}: {', '.join(sorted(missing))} missing. To do: give the "
            "mesh axes of these names, of any size, which may be 1."
        )
    return concrete


def mesh_of_context() -> AbstractMesh | None:
    """Return the mesh that JAX traces on; None for none."""
    context = jax.sharding.get_abstract_mesh()
    return context if context.axis_names else None


def _automatic(mesh: JaxMesh) -> JaxMesh:
    """Return a mesh along whose axes XLA partitions, whatever the types of arrays say."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def manual_axes_at_hand(exported: Mesh) -> dict[str, ShardAxis]:
    """Return the axes along which shards compute alone where JAX now traces, by their names."""
    context = jax.sharding.get_abstract_mesh()
    pairs = zip(context.axis_names, context.axis_types, strict=True)
    manual = {str(name) for name, kind in pairs if kind == AxisType.Manual}
    axes = {}
    for axis in exported.axes:
        alone = ShardAxis(axis.name, axis.size, 1)
        each = _size_of_mapped(alone.mapped_name)
        if each is not None:
            axes[axis.name] = replace(alone, each=each)
        elif axis.name in manual:
            axes[axis.name] = alone
    return axes


def _size_of_mapped(name: str) -> int | None:
    """Return the size of an axis of `jax.vmap`; None if JAX traces in none of this name."""
    try:
        return int(lax.psum(1, name))
    except NameError:
        return None


def shard_axes(exported: Mesh, mesh: JaxMesh, names: Iterable[str]) -> dict[str, ShardAxis]:
    """Return some axes of the mesh of an export, by their names, in the order of that mesh."""
    wanted = frozenset(names)
    axes = {}
    for axis in exported.axes:
        if axis.name in wanted:
            size = mesh.shape[axis.name]
            each = axis.size // size if axis.size % size == 0 else axis.size
            axes[axis.name] = ShardAxis(axis.name, axis.size, each)
    return axes


def with_common_sizes(mesh: jax.sharding.Mesh, exported: Mesh) -> jax.sharding.Mesh:
    """Return the mesh with the greatest axes that divide those of the export.

    What is left of an axis is one of its own, along which devices compute the same.
    """
    sizes, names = [], []
    for name, size in mesh.shape.items():
        common = math.gcd(size, exported.shape.get(str(name), size))
        sizes += [common] if common == size else [common, size // common]
        names += [name] if common == size else [name, f"{name} again"]
    kinds = (AxisType.Auto,) * len(names)
    return jax.sharding.Mesh(np.reshape(mesh.devices, sizes), tuple(names), axis_types=kinds)


def scope_of(op: LiftedOperation) -> tuple[Mesh, Mapping[str, ShardAxis]]:
    """Return the mesh of the export that an operation of a manual computation is about."""
    meshes = dict.fromkeys(meshes_of_module(op.raw).values())
    candidates = [(mesh, axes) for mesh in meshes if (axes := manual_axes_at_hand(mesh))]
    if len(candidates) == 1:
        return candidates[0]
    if candidates or not meshes:
        op.refuse(f"the module has {len(meshes)} meshes with names of axes, and one is expected")
    return next(iter(meshes)), {}
