"""The shardings of a call's arrays on its mesh, read from its module and its `Exported`.

A module has the sharding of each argument and result as text of XLA's `HloSharding`, the attribute
`mhlo.sharding`, whichever partitioner it was written for. It says which part each device has. The
names of the mesh's axes are in the module's Shardy attributes, or in the avals of the `Exported`.

Source: xla/hlo/ir/hlo_sharding.cc, `HloSharding::ToString`; https://openxla.org/shardy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core.mesh_text import draw_mesh
from xla_call_module.analyses.module_shardings import read_module_shardings
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.descriptions.description_json import read_description
from xla_call_module.errors import InteropError
from xla_call_module.shardings.array_sharding import REPLICATED, Sharding
from xla_call_module.shardings.mesh_placement import Mesh, MeshAxis
from xla_call_module.shardings.sharding_text import sharding_from_text
from xla_call_module.stablehlo.modules import open_module, serialize_module

_SHARDY_MESH = "sdy.mesh"
# Of a larger mesh the parts of the devices are not listed.
_MAX_DEVICES = 1 << 16


@dataclass(frozen=True, slots=True)
class ArraySharding:
    """An argument or a result on the mesh.

    Attributes:
        path: the pytree path in the exported function.
        role: `in` or `out`.
        shape: the shape, with symbolic dimensions as text.
        axes: for each dimension the names of the mesh axes that split it, the slowest first.
        parts: for each dimension the number of parts.
        tiles: for each device, in the mesh's order, the number of its part in C order; empty for a
            sharding that is no even split.
        text: the sharding as the module writes it.
    """

    path: str
    role: str
    shape: tuple[int | str, ...]
    axes: tuple[tuple[str, ...], ...]
    parts: tuple[int, ...]
    tiles: tuple[int, ...]
    text: str

    @property
    def label(self) -> str:
        """The role, the path and the shape, such as `in args[0] [8,16]`."""
        return f"{self.role} {self.path} [{','.join(map(str, self.shape))}]"

    @property
    def is_split(self) -> bool:
        """Return whether the array is an even split into several parts."""
        return bool(self.tiles) and max(self.parts, default=1) > 1

    @property
    def partition(self) -> str:
        """The partition in words; a sharding that is no even split as the module writes it."""
        if not self.tiles:
            return self.text
        dims = ", ".join("+".join(axes) or "whole" for axes in self.axes)
        return f"split by ({dims})" if self.is_split else "whole on every device"


@dataclass(frozen=True, slots=True)
class ShardingReport:
    """The mesh of a call, and its arrays on it.

    Attributes:
        partitioner: `Shardy` or `GSPMD`.
        mesh: the axes of the mesh, the slowest first.
        arrays: the arguments and results that have a sharding in the module.
    """

    partitioner: str
    mesh: tuple[MeshAxis, ...]
    arrays: tuple[ArraySharding, ...]

    @property
    def axes(self) -> list[tuple[str, int]]:
        """The names and sizes of the mesh's axes."""
        return [(axis.name, axis.size) for axis in self.mesh]

    @property
    def title(self) -> str:
        """The mesh in words, with its partitioner."""
        return f"{draw_mesh(self.axes)[0]} ({self.partitioner})"


def read_shardings(call: CallModule, module: Any) -> ShardingReport | None:
    """Return the shardings of a call; None where it is for one device."""
    if call.nr_devices < 2:
        return None
    if not any(op.operation.name == _SHARDY_MESH for op in module.body.operations):
        return _read(call, module)
    # Written by JAX alone, it has Shardy's operations, which become attributes when it is written.
    with open_module(serialize_module(module, call.stablehlo_version)) as doubled:
        return _read(call, doubled)


def _read(call: CallModule, module: Any) -> ShardingReport:
    shardings = read_module_shardings(module)
    arguments_and_results = [
        *zip(["in"] * len(call.operands), call.operands, shardings.argument_texts, strict=False),
        *zip(["out"] * len(call.results), call.results, shardings.result_texts, strict=False),
    ]
    mesh = _mesh(call, shardings.meshes, [text for _, _, text in arguments_and_results])
    arrays = tuple(
        _array(mesh, role, spec, text) for role, spec, text in arguments_and_results if text
    )
    return ShardingReport("Shardy" if call.uses_shardy else "GSPMD", mesh, arrays)


def _mesh(call: CallModule, meshes: Sequence[Mesh], texts: Sequence[str]) -> tuple[MeshAxis, ...]:
    """Return the first description of the mesh that has as many devices as the call."""
    orders = [s.order for text in texts if (s := _parse(text)) is not None and s.order is not None]
    unnamed = [tuple(MeshAxis("", size) for size in order.reshape) for order in orders]
    candidates = [*(mesh.axes for mesh in meshes), _mesh_of_exported(call), *unnamed]
    fitting = [mesh for mesh in candidates if math.prod(a.size for a in mesh) == call.nr_devices]
    named = [mesh for mesh in fitting if all(axis.name for axis in mesh)]
    finest = sorted(fitting, key=len, reverse=True)
    return next(iter([*named, *finest]), (MeshAxis("", call.nr_devices),))


def _mesh_of_exported(call: CallModule) -> tuple[MeshAxis, ...]:
    """Return the mesh of the arguments' types, which files of JAX 0.9 and newer have."""
    try:
        description = read_description(call.exported, where=call.name) if call.exported else None
    except InteropError:
        return ()  # it is damaged, which `load` says
    if description is None:
        return ()
    for sharding in (aval.sharding for aval in description.in_avals):
        if sharding is not None and sharding.placement is not None:
            return tuple(MeshAxis(a.name, a.size) for a in sharding.placement.mesh.axes)
    return ()


def _array(mesh: tuple[MeshAxis, ...], role: str, spec: TensorSpec, text: str) -> ArraySharding:
    shape = spec.shape or ()
    sizes = tuple(axis.size for axis in mesh)
    split = _tiles(text, len(shape), math.prod(sizes))
    if split is None:
        return ArraySharding(spec.path, role, shape, (), (), (), text)
    parts, tiles = split
    return ArraySharding(
        spec.path, role, shape, _splitting_axes(mesh, parts, tiles), parts, tiles, text
    )


def _tiles(text: str, rank: int, devices: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the parts of each dimension and of each device; None for no even split."""
    sharding = _parse(text)
    if sharding is None or devices > _MAX_DEVICES:
        return None
    if sharding.kind == REPLICATED:
        return (1,) * rank, (0,) * devices
    if sharding.rank != rank or sharding.order is None or {*sharding.subgroups} - {REPLICATED}:
        return None
    order = sharding.order.devices() if sharding.order.count == devices else ()
    if sorted(order) != list(range(devices)):
        return None
    parts = sharding.parts(rank)
    copies = devices // math.prod(parts)
    tiles = [0] * devices
    for position, device in enumerate(order):
        tiles[device] = position // copies
    return parts, tuple(tiles)


def _parse(text: str) -> Sharding | None:
    try:
        return sharding_from_text(text)
    except InteropError:
        return None  # the report has its text


def _splitting_axes(
    mesh: tuple[MeshAxis, ...], parts: tuple[int, ...], tiles: tuple[int, ...]
) -> tuple[tuple[str, ...], ...]:
    """Return for each dimension the mesh axes along which its part changes."""
    on_mesh = np.array(tiles).reshape([axis.size for axis in mesh])
    coordinates = np.unravel_index(on_mesh, parts) if parts else ()
    axes = []
    for coordinate in coordinates:
        strides = {
            axis.name or f"axis {index}": int(np.take(coordinate, 1, axis=index).flat[0])
            - int(np.take(coordinate, 0, axis=index).flat[0])
            for index, axis in enumerate(mesh)
            if axis.size > 1
        }
        used = sorted((name for name in strides if strides[name]), key=lambda n: -strides[n])
        axes.append(tuple(used))
    return tuple(axes)
