"""How one array lies on several devices, as a value.

It is XLA's `HloSharding`, and where they are known the names of the mesh's axes. The codecs are in
`sharding_text`, `sharding_protos`, `shardy` and `sharding_jax`.

Source: xla/hlo/ir/hlo_sharding.h; xla/xla_data.proto, `OpSharding`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xla_call_module.errors import FormatError, ShardingError
from xla_call_module.shardings.device_order import DeviceOrder, iota_order, listed_order
from xla_call_module.shardings.placements import Placement

__all__ = [
    "MANUAL",
    "MAXIMAL",
    "REPLICATED",
    "TILED",
    "TUPLE",
    "UNKNOWN",
    "UNREDUCED",
    "Sharding",
    "maximal",
    "place",
    "tiled",
]

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
        """Of how many dimensions the array is; None where it may be of any."""
        return len(self.tiles) - len(self.subgroups) if self.kind == TILED else None

    @property
    def num_devices(self) -> int | None:
        """How many devices it names; None where it holds for any number."""
        if self.placement is not None:
            return self.placement.mesh.size
        return self.order.count if self.order is not None else None

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device that has it has all of it."""
        found = self.canonical()
        if found.kind == TILED:
            return math.prod(found.tiles) == 1
        one = self.placement is not None and self.placement.mesh.size == 1
        return found.kind in (REPLICATED, MAXIMAL) or one

    def parts(self, rank: int) -> tuple[int, ...]:
        """Into how many parts each dimension is split.

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
        """For each device the part that it has; a dimension that is not split is `slice(None)`.

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
        found = self.order.devices()
        indices = (index for index in itertools.product(*slices) for _ in range(copies))
        return dict(sorted(zip(found, indices, strict=True)))

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
            kind: [rank + i for i, found in enumerate(self.subgroups) if found == kind]
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
        """What it says in a message: the names of the axes, or the numbers of parts."""
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
    """The sharding that the names of a mesh's axes say for an array.

    Args:
        placement: it by names.
        rank: of the array.
        memory: the kind of memory; empty for the device's own.

    Raises:
        ShardingError: more dimensions are split than there are.

    Example:
        >>> from xla_call_module.shardings.placements import DimAxes, Mesh, MeshAxis, Placement
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> found = place(Placement(mesh, (DimAxes(), DimAxes(("model",)))), rank=2)
        >>> found.tiles, found.order.devices()
        ((1, 2, 4), (0, 2, 4, 6, 1, 3, 5, 7))
    """
    if len(placement.dims) > rank:
        raise ShardingError(
            f"A sharding of {len(placement.dims)} dimensions was given for an array of rank {rank}."
        )
    mesh = placement.mesh
    if not mesh.axes:
        found = maximal(mesh.devices[0]) if mesh.devices else Sharding()
        return replace(found, memory=memory, placement=placement)
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
    found = Sharding(TILED, (*parts, *sizes), order, tuple(kinds)).canonical()
    return replace(found, memory=memory, placement=placement)


def _comparable(sharding: Sharding) -> tuple[object, ...]:
    found = sharding.canonical()
    order = found.order.devices() if found.order is not None else ()
    elements = tuple(map(_comparable, found.elements))
    return found.kind, found.tiles, order, found.subgroups, elements
