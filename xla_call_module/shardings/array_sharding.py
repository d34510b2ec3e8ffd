"""`Sharding`: how one array lies on several devices.

It is XLA's `HloSharding`: tiles, and the `DeviceOrder` that says which device has which tile. Where
the names of the mesh's axes are known, it has a `Placement` besides, as JAX and Shardy say it.
`place` makes the one of the other, and `name_axes` goes back.

Source: xla/hlo/ir/hlo_sharding.h; xla/xla_data.proto, `OpSharding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xla_call_module.errors import FormatError, ShardingError
from xla_call_module.shardings.device_order import DeviceOrder, iota_order, listed_order
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, Placement

REPLICATED, MAXIMAL, TILED = "replicated", "maximal", "tiled"
MANUAL, UNKNOWN, UNREDUCED, TUPLE = "manual", "unknown", "unreduced", "tuple"
_KINDS = (REPLICATED, MAXIMAL, TILED, MANUAL, UNKNOWN, UNREDUCED, TUPLE)
# In the order in which XLA has the groups of devices that share a tile.
_SUBGROUPS = (MANUAL, UNREDUCED, REPLICATED)


@dataclass(frozen=True, slots=True)
class Sharding:
    """The sharding of one array.

    Attributes:
        kind: `replicated`, `maximal` (whole on one device), `tiled`, `manual` (each device has its
            own array), `unreduced` (each has a summand), `unknown`, or `tuple` of several arrays.
        tiles: the number of parts of each dimension, then the size of each subgroup.
        order: the device of each tile; of a maximal one the device.
        subgroups: the kinds of the last axes of `tiles`, which split nothing: `replicated`,
            `manual` or `unreduced`.
        memory: the kind of memory, such as `pinned_host`; empty for the device's own.
        placement: the same sharding by the names of the mesh's axes, where they are known.
    """

    kind: str = REPLICATED
    tiles: tuple[int, ...] = ()
    order: DeviceOrder | None = None
    subgroups: tuple[str, ...] = ()
    elements: tuple[Sharding, ...] = ()
    memory: str = ""
    placement: Placement | None = None

    def __post_init__(self) -> None:
        """Refuse what XLA refuses."""
        if self.kind not in _KINDS or not set(self.subgroups) <= set(_SUBGROUPS):
            raise FormatError(
                f"A sharding of the kind {self.kind!r} with subgroups {list(self.subgroups)}; "
                f"known are {', '.join(_KINDS)} and the subgroups {', '.join(_SUBGROUPS)}."
            )
        count = self.order.count if self.order is not None else 0
        wanted = {TILED: math.prod(self.tiles), MAXIMAL: 1}.get(self.kind, 0)
        fits = len(self.subgroups) <= len(self.tiles) and all(size > 0 for size in self.tiles)
        if count != wanted or not fits or (bool(self.tiles) and self.kind != TILED):
            raise FormatError(
                f"A {self.kind} sharding of tiles {self.tiles}, {len(self.subgroups)} of them "
                f"subgroups, names {count} devices; expected {wanted}. To do: write it again."
            )

    @property
    def rank(self) -> int | None:
        """The rank of the array; None where it may be any."""
        return len(self.tiles) - len(self.subgroups) if self.kind == TILED else None

    @property
    def num_devices(self) -> int | None:
        """The number of its devices; None where it holds for any number."""
        if self.placement is not None:
            return self.placement.mesh.size
        return self.order.count if self.order is not None else None

    @property
    def is_fully_replicated(self) -> bool:
        """Return whether each device that has the array has all of it."""
        canonical = self.canonical()
        if canonical.kind == TILED:
            return math.prod(canonical.tiles) == 1
        one = self.placement is not None and self.placement.mesh.size == 1
        return canonical.kind in (REPLICATED, MAXIMAL) or one

    def parts(self, rank: int) -> tuple[int, ...]:
        """Return the number of parts of each dimension."""
        if self.kind in (REPLICATED, MAXIMAL, UNREDUCED):
            return (1,) * rank
        if self.kind != TILED or self.rank != rank or MANUAL in self.subgroups:
            raise ShardingError(
                f"The sharding {self} does not say how an array of rank {rank} is split. To do: "
                "take the sharding of that array, outside of jax.shard_map."
            )
        return self.tiles[:rank]

    def of_rank(self, rank: int) -> Sharding:
        """Return the same for an array with more dimensions, after the others, that are whole."""
        if self.rank is None or self.rank >= rank:
            return self
        more = (1,) * (rank - self.rank)
        return replace(self, tiles=(*self.tiles[: self.rank], *more, *self.tiles[self.rank :]))

    def canonical(self) -> Sharding:
        """Return the same sharding in the form that XLA gives it, which two equal ones share.

        Groups of devices that share tiles are put in order, and joined or left out where they can
        be. Devices that are listed stay listed.
        """
        if self.kind == TUPLE:
            elements = tuple(element.canonical() for element in self.elements)
            return replace(self, elements=elements)
        if self.kind != TILED or self.order is None:
            return self
        if not self.subgroups:
            return replace(self, order=self.order.canonical())
        rank = len(self.tiles) - len(self.subgroups)
        axes = {
            kind: [rank + i for i, subgroup in enumerate(self.subgroups) if subgroup == kind]
            for kind in _SUBGROUPS
        }
        sizes = {kind: math.prod(self.tiles[axis] for axis in axes[kind]) for kind in _SUBGROUPS}
        kept = tuple(kind for kind in _SUBGROUPS if sizes[kind] > 1)
        if len(kept) <= 1 and math.prod(self.tiles[:rank]) == 1:
            only = kept[0] if kept else self.subgroups[0]
            return replace(self, kind=only, tiles=(), order=None, subgroups=())
        joined = self._joined([axis for kind in kept for axis in axes[kind]], rank, kept)
        tiles = (*self.tiles[:rank], *(sizes[kind] for kind in kept))
        return replace(self, tiles=tiles, order=joined, subgroups=kept)

    def _joined(self, axes: list[int], rank: int, kept: Sequence[str]) -> DeviceOrder:
        """Return the order of the devices with the subgroups' axes in this order."""
        assert self.order is not None
        ones = [axis for axis in range(rank, len(self.tiles)) if axis not in axes]
        order = self.order.transposed(self.tiles, [*range(rank), *ones, *axes])
        if REPLICATED not in kept:
            return order.canonical()
        copies = math.prod(
            self.tiles[rank + i] for i, kind in enumerate(self.subgroups) if kind == REPLICATED
        )
        tiles = (order.count // copies, copies)
        return order.transposed(tiles, (0, 1), last_sorted=True).canonical()

    def is_equivalent_to(self, other: Sharding) -> bool:
        """Return whether each device has the same part under both, in the same kind of memory.

        It compares what `jax.sharding.Sharding.is_equivalent_to` does, but for the devices
        themselves.
        """
        if self.memory != other.memory:
            return False
        if self.is_fully_replicated and other.is_fully_replicated:
            return True
        return _comparable(self) == _comparable(other)

    def __str__(self) -> str:
        """Return it for a message: the names of the axes, or the numbers of parts."""
        if self.placement is not None:
            dims = ", ".join("+".join(dim.names) or "whole" for dim in self.placement.dims)
            return f"({dims}) on the mesh {self.placement.mesh}"
        if self.kind == TILED:
            parts = " x ".join(map(str, self.tiles[: self.rank])) or "no"
            return f"{parts} parts over {self.num_devices} devices"
        return self.kind


def tiled(
    tiles: Sequence[int],
    order: DeviceOrder | Sequence[int] | None = None,
    subgroups: Sequence[str] = (),
) -> Sharding:
    """Return the sharding of an array that is split into tiles.

    Example:
        >>> sharding = tiled([4, 1, 2], subgroups=["replicated"])
        >>> sharding.parts(2), str(sharding)
        ((4, 1), '4 x 1 parts over 8 devices')
    """
    if order is None:
        order = iota_order([math.prod(tiles)])
    if not isinstance(order, DeviceOrder):
        order = listed_order(order)
    return Sharding(TILED, tuple(tiles), order, tuple(subgroups))


def maximal(device: int) -> Sharding:
    """Return the sharding of an array that is whole on one device."""
    return Sharding(MAXIMAL, order=listed_order([device]))


def place(placement: Placement, rank: int, *, memory: str = "") -> Sharding:
    """Return the sharding of an array from the names of a mesh's axes.

    Example:
        >>> from xla_call_module.shardings.mesh_placement import MeshAxis
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> sharding = place(Placement(mesh, (DimAxes(), DimAxes(("model",)))), rank=2)
        >>> sharding.tiles, sharding.order.devices()
        ((1, 2, 4), (0, 2, 4, 6, 1, 3, 5, 7))
    """
    if len(placement.dims) > rank:
        raise ShardingError(
            f"A sharding of {len(placement.dims)} dimensions was given for an array of rank "
            f"{rank}. "
            "To do: give one for each dimension at most."
        )
    mesh = placement.mesh
    if mesh.size == 1:
        alone = mesh.devices and not mesh.axes
        sharding = maximal(mesh.devices[0]) if alone else Sharding()
        return replace(sharding, memory=memory, placement=placement)
    special = placement.special()
    used = {name for dim in placement.dims for name in dim.names}
    free = [axis.name for axis in mesh.axes if axis.name not in used]
    kinds = [special.get(name, REPLICATED) for name in free]
    sizes = [mesh.shape[name] for name in free]
    parts = (*placement.parts, *([1] * (rank - len(placement.dims))))
    order = iota_order([axis.size for axis in mesh.axes], placement.order(free))
    if mesh.devices:
        order = listed_order([mesh.devices[position] for position in order.devices()])
    sharding = Sharding(TILED, (*parts, *sizes), order, tuple(kinds)).canonical()
    return replace(sharding, memory=memory, placement=placement)


def _comparable(sharding: Sharding) -> tuple[object, ...]:
    canonical = sharding.canonical()
    order = canonical.order.devices() if canonical.order is not None else ()
    elements = tuple(map(_comparable, canonical.elements))
    return canonical.kind, canonical.tiles, order, canonical.subgroups, elements


def name_axes(sharding: Sharding, mesh: Mesh, rank: int) -> Placement:
    """Return a sharding by the names of a mesh's axes. Axes of size 1 split nothing.

    Example:
        >>> from xla_call_module.shardings.mesh_placement import MeshAxis
        >>> from xla_call_module.shardings.sharding_text import sharding_from_text
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> placement = sharding_from_text("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
        >>> [dim.names for dim in name_axes(placement, mesh, rank=2).dims]
        [(), ('model',)]
    """
    if sharding.kind == REPLICATED:
        return Placement(mesh)
    order = sharding.order if sharding.rank == rank else None
    if order is not None and order.count == mesh.size:
        parts = sharding.parts(rank)
        tiles = np.empty(mesh.size, int)
        tiles[list(order.devices())] = np.arange(mesh.size) // (mesh.size // math.prod(parts))
        on_mesh = tiles.reshape([axis.size for axis in mesh.axes])
        coordinates = np.unravel_index(on_mesh, parts) if parts else ()
        dims = tuple(_axes_of(coordinate, mesh) for coordinate in coordinates)
        placement = Placement(mesh, dims)
        if place(placement, rank).is_equivalent_to(sharding):
            return placement
    raise ShardingError(
        f"The sharding {sharding} does not fit the axes of the mesh {mesh}. To do: take the mesh "
        "that it was made for."
    )


def _axes_of(coordinate: np.ndarray[tuple[int, ...], np.dtype[np.int64]], mesh: Mesh) -> DimAxes:
    """Return the axes along which the part of one dimension changes, the slowest first."""
    strides = {
        axis.name: int(np.take(coordinate, 1, axis=i).flat[0] - coordinate.flat[0])
        for i, axis in enumerate(mesh.axes)
        if axis.size > 1
    }
    names = sorted((name for name in strides if strides[name] > 0), key=lambda n: -strides[n])
    return DimAxes(tuple(names))
