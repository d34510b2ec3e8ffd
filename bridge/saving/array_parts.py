"""The parts of a `jax.Array` that is sharded over devices, of one process or of many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from savedmodel.variables.extents import (
    Extent,
    boxes_of,
    common_extent,
    slices_of,
    strides_of,
    within,
)

# More entries of one tensor than this, as thousands of devices would make, slow its readers down.
_MAX_PARTS = 64


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """One part of an array, once, however many devices have a replica of it.

    Attributes:
        extent: the start and stop of the part in each dimension of the array.
        holder: the index of the process that has the first replica.
        shards: the shards of that replica, each with its extent in the array and the data on one
            device; empty in another process.
    """

    extent: Extent
    holder: int
    shards: tuple[tuple[Extent, Any], ...]

    def chunks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the part in C order, a few megabytes at a time, put together of its shards."""
        shape = tuple(stop - start for start, stop in self.extent)
        dtype = self.shards[0][1].dtype
        for box in boxes_of(self.extent, strides_of(shape, dtype.itemsize)):
            chunk = np.empty([stop - start for start, stop in box], dtype)
            for extent, data in self.shards:
                if common := common_extent(box, extent):
                    # What numpy sees where it is needs no copy of its own.
                    seen = np.asarray(data) if is_in_host_memory(data) else data
                    chunk[slices_of(within(common, box))] = np.asarray(
                        seen[slices_of(within(common, extent))]
                    )
            yield chunk


def parts_of(array: Any) -> tuple[ArrayPart, ...]:
    """Return the parts that make up an array on several devices, in the order of their starts.

    A replicated array is one part; one that is on a single device of this process, or is none of
    JAX's, has none. Every process gets the same parts, but for their data. Where there are very
    many, neighbours of one process are one part.
    """
    if not isinstance(array, jax.Array) or (
        array.is_fully_addressable and len(array.sharding.device_set) == 1
    ):
        return ()
    if not array.size:
        whole = tuple((0, size) for size in array.shape)
        return (ArrayPart(whole, 0, ((whole, np.empty(array.shape, array.dtype)),)),)
    local_data = {
        _extent(shard.index, array.shape): shard.data
        for shard in array.addressable_shards
        if shard.replica_id == 0
    }
    holders = {
        _extent(shard.index, array.shape): shard.device.process_index
        for shard in array.global_shards
        if shard.replica_id == 0
    }
    groups = [(holder, [extent]) for extent, holder in sorted(holders.items())]
    if len(groups) > _MAX_PARTS:
        groups = _merge_neighbours(holders)
    return tuple(
        ArrayPart(
            _bounding_box(extents),
            holder,
            tuple((extent, local_data[extent]) for extent in extents if extent in local_data),
        )
        for holder, extents in groups
    )


def join_parts(parts: Sequence[ArrayPart]) -> ArrayPart | None:
    """Return the parts of an array as one, which its holder streams; None for several holders."""
    if any(part.holder != parts[0].holder for part in parts):
        return None
    shards = tuple(shard for part in parts for shard in part.shards)
    return ArrayPart(_bounding_box([part.extent for part in parts]), parts[0].holder, shards)


def _merge_neighbours(holders: Mapping[Extent, int]) -> list[tuple[int, list[Extent]]]:
    """Return the parts of each process as one where they fill a box, else each by itself."""
    by_holder: dict[int, list[Extent]] = {}
    for extent, holder in sorted(holders.items()):
        by_holder.setdefault(holder, []).append(extent)
    groups = []
    for holder, extents in by_holder.items():
        # Parts never overlap, so those that are as large as the box around them fill it.
        if sum(map(_volume, extents)) == _volume(_bounding_box(extents)):
            groups.append((holder, extents))
        else:
            groups += [(holder, [extent]) for extent in extents]
    return sorted(groups, key=lambda group: group[1][0])


def _bounding_box(extents: Sequence[Extent]) -> Extent:
    return tuple(
        (min(start for start, _ in bounds), max(stop for _, stop in bounds))
        for bounds in zip(*extents, strict=True)
    )


def _volume(extent: Extent) -> int:
    return math.prod(stop - start for start, stop in extent)


def is_in_host_memory(array: Any) -> bool:
    """Return whether numpy can read the array without a copy."""
    if not isinstance(array, jax.Array):
        return True
    return len(array.devices()) == 1 and next(iter(array.devices())).platform == "cpu"


def _extent(index: tuple[slice, ...], shape: tuple[int, ...]) -> Extent:
    bounds = (part.indices(size) for part, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in bounds)
