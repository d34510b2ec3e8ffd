"""An `Exported` on the mesh at hand, which may be another than it was exported for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from bridge.core._jax import Shardings, map_orders, replace_shardings
from bridge.core.mesh_text import axes_text, draw_grid
from xla_call_module._jax import named_shardings
from xla_call_module.errors import ShardingError
from xla_call_module.exported import argument_paths, result_paths
from xla_call_module.passes.remeshing import read_meshes, remesh_module
from xla_call_module.shardings import array_sharding
from xla_call_module.stablehlo.serialized_shardings import import_shardings

__all__ = ["check_divides", "draw_mesh_lines", "mesh_at_export", "remesh", "to_one_device"]

_MOST_DEVICES_DRAWN = 64


def mesh_at_export(exported: export.Exported) -> AbstractMesh | None:
    """The mesh that an `Exported` was exported for; None where it has no names of axes.

    Its shardings, its avals and its module are asked, in this order; the module does not tell the
    types of the axes, which are then taken to be `Auto`.

    Raises:
        FormatError: the module is damaged.
    """
    for found in (*_meshes_of(named_shardings(exported)), *_meshes_of_avals(exported)):
        if found is not None and found.axis_names:
            return found
    for mesh in read_meshes(exported.mlir_module_serialized):
        names, sizes = zip(*mesh.shape.items(), strict=True)
        return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    return None


def remesh(exported: export.Exported, mesh: Mesh | None) -> export.Exported:
    """The same function, and its VJPs of every order, on a mesh.

    Where the mesh is the one that it was exported for, nothing is changed. Otherwise each array is
    split along the axes of the same names, whatever their sizes now are, and lies whole along axes
    that are new. What was exported for one device runs on any mesh, on each device the same.

    Args:
        exported: any.
        mesh: of the devices that it shall run on; None to leave that to its arguments.

    Raises:
        FormatError: its module is damaged.
        ShardingError: the names of the axes do not fit; an axis does not divide a dimension that
            is split along it; a part of the computation is written for one mesh.
    """
    if mesh is None:
        return map_orders(exported, _imported) if exported.nr_devices > 1 else exported
    return map_orders(exported, partial(_remesh_order, mesh=mesh))


def _remesh_order(exported: export.Exported, *, mesh: Mesh) -> export.Exported:
    saved = mesh_at_export(exported)
    if saved is None:
        _check_count(exported, mesh)
        return exported
    if _is_same(saved, mesh.abstract_mesh):
        return _imported(exported)
    if not set(saved.axis_names) <= set(mesh.axis_names):
        raise _unlike(exported, saved, mesh, "whose axes have other names")
    changed = _on(exported, saved, mesh.abstract_mesh)
    for avals, paths, shardings in zip(
        (exported.in_avals, exported.out_avals),
        (argument_paths(exported.in_tree), result_paths(exported.out_tree)),
        shardings_on(changed, mesh.abstract_mesh),
        strict=True,
    ):
        for aval, path, sharding in zip(avals, paths, shardings, strict=True):
            check_divides(exported.fun_name, path, aval.shape, sharding)
    return changed


def to_one_device(exported: export.Exported) -> export.Exported:
    """The same function on a mesh of JAX's first device; as it is where its mesh has no names.

    Raises:
        FormatError: its module is damaged.
        ShardingError: a part of the computation is written for several devices.
    """
    saved = mesh_at_export(exported) if exported.nr_devices > 1 else None
    if saved is None:
        return exported
    device = np.array(jax.devices()[:1]).reshape([1] * len(saved.axis_names))
    return remesh(exported, Mesh(device, saved.axis_names, axis_types=saved.axis_types))


def shardings_on(exported: export.Exported, mesh: AbstractMesh) -> tuple[Shardings, Shardings]:
    """The shardings of the arguments and of the results on the mesh of the export, by names.

    Older versions of JAX keep no names, and find them when they are given the mesh.

    Args:
        exported: any.
        mesh: that of `mesh_at_export`.
    """
    named = named_shardings(exported)
    if any(sharding is not None for side in named for sharding in side):
        return named
    given: Any = exported  # in the types of older versions the mesh has devices
    return tuple(given.in_shardings_jax(mesh)), tuple(given.out_shardings_jax(mesh))


def check_divides(
    name: str, path: str, shape: Sequence[Any], sharding: NamedSharding | None
) -> None:
    """Refuse a shape that a sharding cannot split evenly, as JAX does.

    Args:
        name: of the function in messages.
        path: of the array.
        shape: its shape; symbolic dimensions are any multiple.
        sharding: None for one that nobody split.

    Raises:
        ShardingError: it is not split evenly.
    """
    if sharding is None:
        return
    sizes = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    for index, entry in enumerate(sharding.spec):
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            continue
        names: tuple[Any, ...] = (entry,) if isinstance(entry, str) else tuple(entry)
        parts = math.prod(sizes[axis] for axis in names)
        if isinstance(shape[index], int) and shape[index] % parts:
            axes = axes_text([(axis, sizes[axis]) for axis in names])
            raise ShardingError(
                f"{path} of {name} has shape {list(shape)}, and dimension {index} is split along "
                f"the mesh's {axes}, of which {shape[index]} is no multiple. To do: pad it to a "
                "multiple, or take a mesh with smaller axes."
            )


def draw_mesh_lines(mesh: AbstractMesh | Mesh) -> list[str]:
    """A mesh as lines of text: its axes, then the devices by their place in it."""
    axes = _axes(mesh)
    count = math.prod(size for _, size in axes)
    devices = f"{count} device{'s' if count > 1 else ''}"
    lines = [f"mesh of {devices}: {axes_text(axes) or 'no axes'}"]
    return lines if count > _MOST_DEVICES_DRAWN else [*lines, *draw_grid(axes, range(count))]


def _imported(exported: export.Exported) -> export.Exported:
    module = import_shardings(exported.mlir_module_serialized)
    if module is exported.mlir_module_serialized:
        return exported
    return dataclasses.replace(exported, mlir_module_serialized=module)


def _on(exported: export.Exported, saved: AbstractMesh, mesh: AbstractMesh) -> export.Exported:
    arguments, results = (
        tuple(_moved(sharding, mesh) for sharding in shardings)
        for shardings in shardings_on(exported, saved)
    )
    changed = replace_shardings(exported, arguments, results)
    if _axes(saved) == _axes(mesh):
        module = import_shardings(exported.mlir_module_serialized)
    else:
        module = _remeshed_module(exported, saved, mesh)
    return dataclasses.replace(
        changed,
        mlir_module_serialized=module,
        nr_devices=math.prod(mesh.axis_sizes),
        in_avals=tuple(_with_mesh(aval, mesh) for aval in exported.in_avals),
        out_avals=tuple(_with_mesh(aval, mesh) for aval in exported.out_avals),
    )


def _remeshed_module(exported: export.Exported, saved: AbstractMesh, mesh: AbstractMesh) -> bytes:
    old, new = (
        array_sharding.Mesh(tuple(array_sharding.MeshAxis(name, size) for name, size in _axes(one)))
        for one in (saved, mesh)
    )
    try:
        return remesh_module(exported.mlir_module_serialized, old, new, where=exported.fun_name)
    except ShardingError as error:
        raise ShardingError(f"{error}\n{_both(saved, mesh)}") from error


def _moved(sharding: NamedSharding | None, mesh: AbstractMesh) -> NamedSharding | None:
    if sharding is None:
        return None
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def _with_mesh(aval: Any, mesh: AbstractMesh) -> Any:
    """An aval of which JAX's explicit types say where it lies, on another mesh."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or not sharding.mesh.axis_names:
        return aval
    return aval.update(sharding=NamedSharding(mesh, sharding.spec))


def _is_same(saved: AbstractMesh, mesh: AbstractMesh) -> bool:
    types = tuple(saved.axis_types) == tuple(mesh.axis_types)
    return _axes(saved) == _axes(mesh) and types


def _axes(mesh: AbstractMesh | Mesh) -> list[tuple[str, int]]:
    pairs = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return [(str(name), int(size)) for name, size in pairs]


def _check_count(exported: export.Exported, mesh: Mesh) -> None:
    if exported.nr_devices not in (1, mesh.size):
        raise ShardingError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, without names "
            f"for the axes of their mesh, and is to run on a "
            + "\n".join(draw_mesh_lines(mesh))
            + f"\nTo do: take a mesh of {exported.nr_devices} devices, or export it with Shardy."
        )


def _unlike(
    exported: export.Exported, saved: AbstractMesh, mesh: Mesh, reason: str
) -> ShardingError:
    missing = [str(name) for name in saved.axis_names if name not in mesh.axis_names]
    return ShardingError(
        f"{exported.fun_name} cannot run on this mesh, {reason}: {', '.join(missing)} missing.\n"
        f"{_both(saved, mesh)}\nTo do: give the mesh axes of these names, of any size, which may "
        "be 1; bridge.meshes.mesh_of makes the mesh of the export."
    )


def _both(saved: AbstractMesh, mesh: AbstractMesh | Mesh) -> str:
    drawn = ["It was exported for a " + "\n".join(draw_mesh_lines(saved))]
    return "\n".join([*drawn, "It is to run on a " + "\n".join(draw_mesh_lines(mesh))])


def _meshes_of(shardings: tuple[Shardings, Shardings]) -> list[AbstractMesh]:
    found = [sharding for side in shardings for sharding in side if sharding is not None]
    return [sharding.mesh.abstract_mesh for sharding in found]


def _meshes_of_avals(exported: export.Exported) -> list[AbstractMesh | None]:
    avals: tuple[Any, ...] = (*exported.in_avals, *exported.out_avals)
    return [getattr(getattr(aval, "sharding", None), "mesh", None) for aval in avals]
