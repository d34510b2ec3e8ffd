"""The mesh of a file or an `Exported`, its shards, and pictures of both.

mesh = bridge.meshes.mesh_of("my_model")
print(bridge.meshes.to_text("my_model"))
model = bridge.load("my_model", mesh=mesh)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, Mesh

from bridge.inspecting.markup import to_markup
from bridge.inspecting.pictures import draw_sharding_picture
from bridge.inspecting.report_text import draw_sharding
from bridge.inspecting.sharding import ArraySharding, ShardingReport, read_shardings
from bridge.inspecting.wording import printable
from bridge.load import load
from bridge.loading.exported_on_mesh import draw_mesh_lines, mesh_at_export
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from xla_call_module.errors import ShardingError, StructureError, remedy_for
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.modules import open_module
from xla_call_module.tracebacks import api_boundary

__all__ = ["Sharded", "mesh_of", "shards_of", "to_svg", "to_text"]


def __dir__() -> list[str]:
    return __all__


# What a mesh can be asked of: the folder of a SavedModel, what `load` returns, or an `Exported`.
Sharded = str | os.PathLike[str] | LoadedModel | LoadedSignature | export.Exported


@api_boundary
def mesh_of(saved: Sharded, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return the mesh of the export, of devices of this process, with its axis names and sizes.

    Args:
        saved: a folder or a loaded model, for its default signature; a signature of a loaded model;
            or an `Exported`.
        devices: the devices to take the first of; by default `jax.devices()`. `jax.make_mesh`
            decides about their order in the mesh.

    Raises:
        FormatError: a file is damaged.
        ShardingError: there is no mesh in the export, or there are too few devices.

    Example:
        >>> import bridge.meshes, jax, numpy as np
        >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
        >>> mesh = AbstractMesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        >>> rows, columns = (
        ...     NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), (None, "model")))
        >>> f = jax.jit(lambda p, x: x @ p["w"], in_shardings=({"w": columns}, rows))
        >>> params = {"w": np.ones((3, 2), np.float32)}
        >>> exported = jax.export.export(f)(params, np.ones((4, 3), np.float32))
        >>> saved = bridge.save(exported, "on_a_mesh", params=params)
        >>> mesh = bridge.meshes.mesh_of("on_a_mesh")
        >>> mesh.axis_names, mesh.axis_sizes
        (('data', 'model'), (1, 1))
        >>> model = bridge.load("on_a_mesh", mesh=mesh)
        >>> tuple(model.params["w"].sharding.spec)
        (None, 'model')
    """
    exported = _exported(saved)
    mesh = mesh_at_export(exported)
    if mesh is None:
        raise ShardingError(
            f"{exported.fun_name} was exported for {exported.nr_devices} device(s), without names "
            "for the axes of a mesh. To do: make one with jax.make_mesh; what was exported for one "
            "device runs on any mesh."
        )
    count = math.prod(mesh.axis_sizes)
    given = list(jax.devices() if devices is None else devices)
    if len(given) < count:
        raise ShardingError(
            f"{exported.fun_name} was exported for {count} devices, and {len(given)} are at hand. "
            "It is a " + "\n".join(draw_mesh_lines(mesh)) + "\nTo do: make a "
            "mesh with the same names and smaller sizes, on which bridge.load puts it as well; or, "
            f"to try it out, jax.config.update('jax_num_cpu_devices', {count}) before JAX is used."
        )
    return jax.make_mesh(
        mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=given[:count]
    )


@api_boundary
def shards_of(saved: Sharded) -> Mapping[str, tuple[tuple[slice, ...], ...]]:
    """Return for each argument and result the part of each device, in the order of the mesh.

    Args:
        saved: as for `mesh_of`.

    Returns:
        A mapping from paths, such as `args[0]['w']` and `result`. Arrays with symbolic dimensions,
        and arrays without a sharding in the module, are left out.

    Raises:
        InteropError: the export is one that `bridge.save` refuses.

    Example:
        >>> import bridge.meshes, jax, numpy as np
        >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
        >>> mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
        >>> rows = NamedSharding(mesh, PartitionSpec("data"))
        >>> f = jax.jit(lambda x: 2 * x, in_shardings=rows, out_shardings=rows)
        >>> exported = jax.export.export(f)(np.ones((4, 3), np.float32))
        >>> bridge.meshes.shards_of(exported)["args[0]"][1]
        (slice(2, 4, None), slice(None, None, None))
    """
    report = _report(_exported(saved))
    arrays = () if report is None else report.arrays
    return MappingProxyType(
        {
            array.path: tuple(_part(array, tile) for tile in array.tiles)
            for array in arrays
            if array.tiles and all(isinstance(size, int) for size in array.shape)
        }
    )


@api_boundary
def to_text(saved: Sharded | Mesh | AbstractMesh) -> str:
    """Return a drawing of a mesh for a terminal, and of each array on it with its parts.

    Args:
        saved: as for `mesh_of`; or a mesh, which is drawn alone.

    Raises:
        InteropError: the export is one that `bridge.save` refuses.

    Example:
        >>> import bridge.meshes
        >>> from jax.sharding import AbstractMesh
        >>> print(bridge.meshes.to_text(AbstractMesh((2, 3), ("data", "model"))))
        mesh of 6 devices: data 2 x model 3
                  model=0  model=1  model=2
          data=0        0        1        2
          data=1        3        4        5
    """
    if isinstance(saved, Mesh | AbstractMesh):
        return _lines(draw_mesh_lines(saved))
    report = _report(_exported(saved))
    return "on one device" if report is None else _lines(draw_sharding(report))


@api_boundary
def to_svg(saved: Sharded) -> str:
    """Return the same drawing as an SVG image: the parts of each array, and their devices.

    Args:
        saved: as for `mesh_of`.

    Raises:
        InteropError: the export is one that `bridge.save` refuses.
        ShardingError: the export is for one device.

    Example:
        >>> import bridge.meshes, jax, numpy as np
        >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
        >>> mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
        >>> rows = NamedSharding(mesh, PartitionSpec("data"))
        >>> f = jax.jit(lambda x: 2 * x, in_shardings=rows, out_shardings=rows)
        >>> exported = jax.export.export(f)(np.ones((4, 3), np.float32))
        >>> bridge.meshes.to_svg(exported)[:5]
        '<svg '
    """
    exported = _exported(saved)
    report = _report(exported)
    if report is None:
        raise ShardingError(
            f"{exported.fun_name} was exported for one device, so there is no mesh to draw. To "
            "do: export it with shardings on a mesh."
        )
    return to_markup(draw_sharding_picture(report))


def _exported(saved: Sharded) -> export.Exported:
    if isinstance(saved, str | Path) or hasattr(saved, "__fspath__"):
        saved = load(saved)
    if isinstance(saved, LoadedModel):
        saved = saved.default
    exported: Any = saved.exported if isinstance(saved, LoadedSignature) else saved
    if not isinstance(exported, export.Exported):
        raise StructureError(
            f"Expected the folder of a SavedModel, what bridge.load returns, or a "
            f"jax.export.Exported; got {type(exported).__name__}. "
            f"{remedy_for(exported, otherwise='pass one of these')}"
        )
    return exported


def _report(exported: export.Exported) -> ShardingReport | None:
    call = from_exported(exported, allow_flat_trees=True)
    with open_module(call.module) as module:
        return read_shardings(call, module)


def _part(array: ArraySharding, tile: int) -> tuple[slice, ...]:
    """Return a part of an array by its number."""
    slices: list[slice] = []
    for size, parts in zip(reversed(array.shape), reversed(array.parts), strict=True):
        tile, position = divmod(tile, parts)
        extent = int(size) // parts
        part = slice(None) if parts == 1 else slice(position * extent, (position + 1) * extent)
        slices.insert(0, part)
    return tuple(slices)


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(map(printable, lines))
