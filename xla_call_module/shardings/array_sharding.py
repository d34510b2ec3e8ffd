"""How one array lies on several devices, as a value.

A `Sharding` is XLA's `HloSharding`: tiles, and the `DeviceOrder` that says which device has which
tile. Where the names of the mesh's axes are known, it has a `Placement` besides, as JAX and Shardy
say it. `place` makes the one of the other, and `name_axes` goes back.

Source: xla/hlo/ir/hlo_sharding.h; xla/xla_data.proto, `OpSharding`; xla/hlo/ir/tile_assignment.h;
`jax.sharding.NamedSharding`; https://openxla.org/shardy/sharding_representation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xla_call_module.errors import FormatError, ShardingError

__all__ = [
    "AXIS_KINDS",
    "MANUAL",
    "MAXIMAL",
    "REPLICATED",
    "TILED",
    "TUPLE",
    "UNKNOWN",
    "UNREDUCED",
    "DeviceOrder",
    "DimAxes",
    "Mesh",
    "MeshAxis",
    "Placement",
    "Sharding",
    "iota_order",
    "listed_order",
    "maximal",
    "name_axes",
    "place",
    "tiled",
]

REPLICATED, MAXIMAL, TILED = "replicated", "maximal", "tiled"
MANUAL, UNKNOWN, UNREDUCED, TUPLE = "manual", "unknown", "unreduced", "tuple"
_KINDS = (REPLICATED, MAXIMAL, TILED, MANUAL, UNKNOWN, UNREDUCED, TUPLE)
# In the order in which XLA has the groups of devices that share a tile.
_SUBGROUPS = (MANUAL, UNREDUCED, REPLICATED)
AXIS_KINDS = ("auto", "explicit", "manual")
# Far more than any mesh has; a file can name any number.
MAX_DEVICES = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The devices tile by tile, the tiles counted in C order.

    Attributes:
        reshape: the shape that the numbers from 0 on are laid out in; empty for a list.
        transpose: how the axes of that shape are then permuted.
        listed: the devices one by one; empty for an iota.
    """

    reshape: tuple[int, ...] = ()
    transpose: tuple[int, ...] = ()
    listed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no order of devices."""
        iota = bool(self.reshape) and sorted(self.transpose) == list(range(len(self.reshape)))
        if iota and not self.listed and min(self.reshape) > 0:
            return
        listed = self.listed and not self.reshape and not self.transpose
        if listed and min(self.listed) >= 0 and len(set(self.listed)) == len(self.listed):
            return
        raise FormatError(
            f"The devices {list(self.listed)[:16]} and the shape {self.reshape} transposed by "
            f"{self.transpose} are no order of devices: expected either, each device and each axis "
            "once. To do: write the sharding again."
        )

    @property
    def count(self) -> int:
        """How many devices there are."""
        return math.prod(self.reshape) if self.reshape else len(self.listed)

    @property
    def is_iota(self) -> bool:
        """Whether it is in the short form."""
        return bool(self.reshape)

    def devices(self) -> tuple[int, ...]:
        """The devices one by one.

        Raises:
            FormatError: there are more than any mesh has.
        """
        if not self.is_iota:
            return self.listed
        if self.count > MAX_DEVICES:
            raise FormatError(
                f"A sharding over {self.count:,} devices; at most {MAX_DEVICES:,} are listed."
            )
        laid_out = np.arange(self.count).reshape(self.reshape).transpose(self.transpose)
        return tuple(map(int, laid_out.ravel()))

    def canonical(self) -> DeviceOrder:
        """The same order in the shape with the fewest axes, as XLA writes it; a list stays one."""
        if not self.is_iota:
            return self
        factors = [(axis, self.reshape[axis]) for axis in self.transpose if self.reshape[axis] > 1]
        return _from_factors(factors) if factors else DeviceOrder((1,), (0,))

    def transposed(
        self, tiles: Sequence[int], axes: Sequence[int], *, last_sorted: bool = False
    ) -> DeviceOrder:
        """The order after the axes of the tiles were permuted.

        Args:
            tiles: the sizes of the tiles' axes, whose product is the number of devices.
            axes: which of them comes at each place.
            last_sorted: whether devices that differ in the last axis only, which all have the same
                part, are put in ascending order.
        """
        moving = [axis for axis in axes if tiles[axis] > 1]
        if not last_sorted and moving == sorted(moving):
            return self.canonical()
        last = math.prod([tiles[axis] for axis in axes[-1:]])
        groups = self.canonical()._factors_of(tiles) if self.is_iota else None
        if groups is None:
            moved = np.reshape(self.devices(), tiles).transpose(axes).reshape(-1, last)
            moved = np.sort(moved, axis=1) if last_sorted else moved
            return DeviceOrder(listed=tuple(map(int, moved.ravel())))
        permuted = [groups[axis] for axis in axes]
        if last_sorted:
            permuted[-1] = sorted(permuted[-1])
        factors = [factor for group in permuted for factor in group]
        return _from_factors(factors) if factors else DeviceOrder((1,), (0,))

    def _factors_of(self, tiles: Sequence[int]) -> list[list[tuple[tuple[int, int], int]]] | None:
        """For each axis of the tiles the factors of the laid out shape that make it up.

        Each is its place, the axis and the position in it, and its size. None where an axis of the
        tiles cuts across.
        """
        todo = [(axis, 0, self.reshape[axis]) for axis in self.transpose]
        groups: list[list[tuple[tuple[int, int], int]]] = []
        for size in tiles:
            group = []
            left = size
            while left > 1:
                axis, position, length = todo.pop(0)
                taken = math.gcd(length, left)
                if taken == min(length, left):
                    group.append(((axis, position), taken))
                    left //= taken
                    if length > taken:
                        todo.insert(0, (axis, position + 1, length // taken))
                else:
                    return None
            groups.append([factor for factor in group if factor[1] > 1])
            while todo and todo[0][2] == 1:
                todo.pop(0)
        return groups


def iota_order(reshape: Sequence[int], transpose: Sequence[int] = ()) -> DeviceOrder:
    """The numbers from 0 on in a shape whose axes are then permuted; by default they are not.

    Raises:
        FormatError: the axes are not each named once.

    >>> iota_order([2, 4], [1, 0]).devices()
    (0, 4, 1, 5, 2, 6, 3, 7)
    """
    return DeviceOrder(tuple(reshape), tuple(transpose) or tuple(range(len(reshape))))


def listed_order(devices: Sequence[int]) -> DeviceOrder:
    """The devices one by one.

    Raises:
        FormatError: one is named twice.
    """
    return DeviceOrder(listed=tuple(map(int, devices)))


def _from_factors(factors: Sequence[tuple[object, int]]) -> DeviceOrder:
    """The iota whose transposed axes are these; neighbours that stay neighbours become one."""
    order = sorted(range(len(factors)), key=lambda index: factors[index][0])  # type: ignore[arg-type, return-value]  # all numbers, or all pairs of numbers
    place = {index: position for position, index in enumerate(order)}
    runs: list[list[int]] = []
    for index in range(len(factors)):
        if runs and place[index] == place[runs[-1][-1]] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    sizes = [math.prod(factors[index][1] for index in run) for run in runs]
    ascending = sorted(range(len(runs)), key=lambda number: place[runs[number][0]])
    rank = {number: position for position, number in enumerate(ascending)}
    return DeviceOrder(
        tuple(sizes[number] for number in ascending), tuple(rank[n] for n in range(len(runs)))
    )


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh.

    Attributes:
        name: empty where it is not known.
        size: how many devices it has.
        kind: `auto`, `explicit` or `manual`, as `jax.sharding.AxisType`.
    """

    name: str
    size: int
    kind: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what is no axis."""
        if self.size < 1 or self.kind not in AXIS_KINDS:
            raise ShardingError(
                f"The axis {self.name!r} of a mesh has the size {self.size} and the type "
                f"{self.kind!r}; expected a positive size and one of {', '.join(AXIS_KINDS)}."
            )


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of devices.

    Attributes:
        axes: the slowest first.
        devices: their numbers in the mesh's order; empty for 0, 1, 2, ….
    """

    axes: tuple[MeshAxis, ...]
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a mesh that no framework has."""
        names = [axis.name for axis in self.axes if axis.name]
        if len(set(names)) < len(names):
            raise ShardingError(f"The axes of a mesh are named {names}; expected each name once.")
        numbered = sorted(self.devices) == list(range(len(self.devices)))
        if self.devices and self.axes and not (numbered and len(self.devices) == self.size):
            raise ShardingError(
                f"The mesh {self} has {self.size} devices, but these are numbered "
                f"{list(self.devices)[:16]}."
            )

    @property
    def size(self) -> int:
        """How many devices it has."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return {axis.name: axis.size for axis in self.axes}

    def __str__(self) -> str:
        """The axes as `data 4 x model 2`."""
        return " x ".join(f"{axis.name or '?'} {axis.size}" for axis in self.axes)


@dataclass(frozen=True, slots=True)
class DimAxes:
    """The axes that split one dimension of an array.

    Attributes:
        names: the axes, the slowest first.
        is_open: whether the partitioner may split it further. With no names it is JAX's
            `PartitionSpec.UNCONSTRAINED`.
    """

    names: tuple[str, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """An array on the axes of a mesh.

    Attributes:
        mesh: where it lies.
        dims: for each dimension what splits it; those after the last are whole.
        replicated: axes that the partitioner must not split it along.
        unreduced: axes along which each device has a summand of it.
        reduced: axes along which its cotangent is so (JAX's explicit types).
    """

    mesh: Mesh
    dims: tuple[DimAxes, ...] = ()
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse axes that the mesh does not have, or that are used twice."""
        used = [*self._splitting(), *self.unreduced]
        known = self.mesh.shape
        unknown = sorted({*used, *self.replicated, *self.reduced} - known.keys())
        twice = sorted({name for name in used if used.count(name) > 1})
        if unknown or twice:
            raise ShardingError(
                f"A sharding by the axes {used} on the mesh {self.mesh}: "
                + (f"{unknown} are none of its axes." if unknown else f"{twice} are named twice.")
            )

    def _splitting(self) -> Iterator[str]:
        for dim in self.dims:
            yield from dim.names

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each of `dims` is split."""
        sizes = self.mesh.shape
        return tuple(math.prod(sizes[name] for name in dim.names) for dim in self.dims)

    def special(self) -> dict[str, str]:
        """The axes that split nothing and do not replicate either: `manual` or `unreduced`."""
        free = [axis for axis in self.mesh.axes if axis.name not in set(self._splitting())]
        kinds = {axis.name: "manual" for axis in free if axis.kind == "manual"}
        return kinds | dict.fromkeys(self.unreduced, "unreduced")

    def order(self, tail: Sequence[str]) -> tuple[int, ...]:
        """The numbers of the mesh's axes: those that split, dimension by dimension, then others."""
        number = {axis.name: index for index, axis in enumerate(self.mesh.axes)}
        return tuple(number[name] for name in [*self._splitting(), *tail])


@dataclass(frozen=True, slots=True)
class Sharding:
    """The sharding of one array.

    Attributes:
        kind: `replicated`, `maximal` (whole on one device), `tiled`, `manual` (each device has its
            own array), `unreduced` (each has a summand), `unknown`, or `tuple` of several arrays.
        tiles: into how many parts each dimension is split, then the size of each subgroup.
        order: which device has which tile; of a maximal one the device.
        subgroups: what the last axes of `tiles` are, which split nothing: `replicated`, `manual`
            or `unreduced`.
        elements: of a tuple.
        memory: the kind of memory, such as `pinned_host`; empty for the device's own.
        placement: the same by the names of the mesh's axes, where they are known.
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
        """Whether each device that has it has all of it."""
        canonical = self.canonical()
        if canonical.kind == TILED:
            return math.prod(canonical.tiles) == 1
        one = self.placement is not None and self.placement.mesh.size == 1
        return canonical.kind in (REPLICATED, MAXIMAL) or one

    def parts(self, rank: int) -> tuple[int, ...]:
        """Return into how many parts each dimension is split.

        Raises:
            ShardingError: it is for arrays of another rank, or it does not say.
        """
        if self.kind in (REPLICATED, MAXIMAL, UNREDUCED):
            return (1,) * rank
        if self.kind != TILED or self.rank != rank or MANUAL in self.subgroups:
            raise ShardingError(
                f"The sharding {self} does not say how an array of rank {rank} is split. To do: "
                "take the sharding of that array, outside of jax.shard_map."
            )
        return self.tiles[:rank]

    def of_rank(self, rank: int) -> Sharding:
        """The same for an array with more dimensions, after the others, that are whole."""
        if self.rank is None or self.rank >= rank:
            return self
        more = (1,) * (rank - self.rank)
        return replace(self, tiles=(*self.tiles[: self.rank], *more, *self.tiles[self.rank :]))

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one device's part.

        Raises:
            ShardingError: the array cannot be split evenly.
        """
        parts = self.parts(len(shape))
        for axis, (size, count) in enumerate(zip(shape, parts, strict=True)):
            if size % count:
                raise ShardingError(
                    f"The sharding {self} splits dimension {axis} of an array of shape "
                    f"{tuple(shape)} into {count} parts, which {size} is no multiple of."
                )
        return tuple(size // count for size, count in zip(shape, parts, strict=True))

    def device_indices(
        self, shape: Sequence[int], num_devices: int | None = None
    ) -> dict[int, tuple[slice, ...]]:
        """Return the part of each device; a dimension that is not split is `slice(None)`.

        Args:
            shape: of the array.
            num_devices: how many devices there are, for a sharding that does not name them.

        Raises:
            ShardingError: the array cannot be split evenly, or the number is missing.
        """
        part, parts = self.shard_shape(shape), self.parts(len(shape))
        whole = (slice(None),) * len(shape)
        if self.kind != TILED or self.order is None:
            count = num_devices or self.num_devices
            if count is None:
                raise ShardingError(f"The sharding {self} does not say over how many devices.")
            devices = self.order.devices() if self.order is not None else range(count)
            return dict.fromkeys(devices, whole)
        slices = [
            [slice(None)] if n == 1 else [slice(i * size, (i + 1) * size) for i in range(n)]
            for n, size in zip(parts, part, strict=True)
        ]
        copies = math.prod(self.tiles[len(shape) :])
        numbers = self.order.devices()
        indices = (index for index in itertools.product(*slices) for _ in range(copies))
        return dict(sorted(zip(numbers, indices, strict=True)))

    def canonical(self) -> Sharding:
        """The same sharding in the form that XLA gives it, which two equal ones share.

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
        """The order of the devices with the subgroups' axes in this order."""
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
        """Whether each device has the same part under both, in the same kind of memory.

        It is what `jax.sharding.Sharding.is_equivalent_to` compares, but for the devices
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
    """An array that is split into tiles.

    Args:
        tiles: into how many parts each dimension is split, then the size of each subgroup.
        order: which device has which tile; by default device n has the n-th in C order.
        subgroups: what the last axes of `tiles` are: `replicated`, `manual` or `unreduced`.

    Raises:
        FormatError: the devices are not as many as the tiles.

    Example:
        >>> sharding = tiled([4, 1, 2], subgroups=["replicated"])
        >>> sharding.shard_shape((8, 3)), sharding.device_indices((8, 3))[5]
        ((2, 3), (slice(4, 6, None), slice(None, None, None)))
    """
    if order is None:
        order = iota_order([math.prod(tiles)])
    if not isinstance(order, DeviceOrder):
        order = listed_order(order)
    return Sharding(TILED, tuple(tiles), order, tuple(subgroups))


def maximal(device: int) -> Sharding:
    """An array that is whole on one device."""
    return Sharding(MAXIMAL, order=listed_order([device]))


def place(placement: Placement, rank: int, *, memory: str = "") -> Sharding:
    """Return the sharding of an array from the names of a mesh's axes.

    Args:
        placement: it by names.
        rank: of the array.
        memory: the kind of memory; empty for the device's own.

    Raises:
        ShardingError: more dimensions are split than there are.

    Example:
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> sharding = place(Placement(mesh, (DimAxes(), DimAxes(("model",)))), rank=2)
        >>> sharding.tiles, sharding.order.devices()
        ((1, 2, 4), (0, 2, 4, 6, 1, 3, 5, 7))
    """
    if len(placement.dims) > rank:
        raise ShardingError(
            f"A sharding of {len(placement.dims)} dimensions was given for an array of rank {rank}."
        )
    mesh = placement.mesh
    if not mesh.axes:
        sharding = maximal(mesh.devices[0]) if mesh.devices else Sharding()
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
    if mesh.size == 1:
        return Sharding(memory=memory, placement=placement)
    sharding = Sharding(TILED, (*parts, *sizes), order, tuple(kinds)).canonical()
    return replace(sharding, memory=memory, placement=placement)


def _comparable(sharding: Sharding) -> tuple[object, ...]:
    canonical = sharding.canonical()
    order = canonical.order.devices() if canonical.order is not None else ()
    elements = tuple(map(_comparable, canonical.elements))
    return canonical.kind, canonical.tiles, order, canonical.subgroups, elements


def name_axes(sharding: Sharding, mesh: Mesh, rank: int) -> Placement:
    """Return a sharding by the names of a mesh's axes. Axes of size 1 split nothing.

    Args:
        sharding: tiled or replicated.
        mesh: the one that it is about.
        rank: of the array.

    Raises:
        ShardingError: the axes of this mesh do not make up its parts.

    Example:
        >>> from xla_call_module.shardings.sharding_text import sharding_from_text
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> placement = sharding_from_text("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
        >>> [dim.names for dim in name_axes(placement, mesh, rank=2).dims]
        [(), ('model',)]
    """
    if sharding.kind == REPLICATED:
        return Placement(mesh)
    order = sharding.order
    fits = sharding.kind == TILED and sharding.rank == rank and order is not None
    if fits and order is not None and order.count == mesh.size:
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
        f"The sharding {sharding} is none by the axes of the mesh {mesh}. To do: take the mesh "
        "that it was made for."
    )


def _axes_of(coordinate: np.ndarray[tuple[int, ...], np.dtype[np.int64]], mesh: Mesh) -> DimAxes:
    """The axes along which the part of one dimension changes, the slowest first."""
    strides = {
        axis.name: int(np.take(coordinate, 1, axis=i).flat[0] - coordinate.flat[0])
        for i, axis in enumerate(mesh.axes)
        if axis.size > 1
    }
    names = sorted((name for name in strides if strides[name] > 0), key=lambda n: -strides[n])
    return DimAxes(tuple(names))
