"""Boxes within arrays: the start and stop of a part in each dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator

from savedmodel.variables.piece_checksums import PIECE_SIZE

Extent = tuple[tuple[int, int], ...]
"""The start and stop of a part in each dimension."""


def common_extent(one: Extent, other: Extent) -> Extent | None:
    """Return the intersection of two boxes; None where it is empty.

    >>> common_extent(((0, 4), (0, 2)), ((2, 6), (1, 2)))
    ((2, 4), (1, 2))
    """
    common = tuple(
        (max(start, begin), min(stop, end))
        for (start, stop), (begin, end) in zip(one, other, strict=True)
    )
    return common if all(start < stop for start, stop in common) else None


def within(box: Extent, outer: Extent) -> Extent:
    """Return a box, counted from the beginning of the one around it."""
    return tuple(
        (start - origin, stop - origin)
        for (start, stop), (origin, _) in zip(box, outer, strict=True)
    )


def slices_of(extent: Extent) -> tuple[slice, ...]:
    """Return the extent as slices."""
    return tuple(slice(start, stop) for start, stop in extent)


def strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return for each dimension the bytes from one of its elements to the next."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span_of(box: Extent, strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return where the first byte of a box is, and where its last one ends."""
    pairs = [*zip(box, strides, strict=True)]
    first = sum(start * stride for (start, _), stride in pairs)
    last = sum((stop - 1) * stride for (_, stop), stride in pairs)
    return first, last + itemsize


def boxes_of(extent: Extent, strides: tuple[int, ...], axis: int = 0) -> Iterator[Extent]:
    """Yield boxes of a few megabytes, whose bytes are near one another, in C order."""
    while axis < len(extent) and extent[axis][1] - extent[axis][0] == 1:
        axis += 1
    if axis == len(extent):
        yield extent
        return
    start, stop = extent[axis]
    step = max(1, PIECE_SIZE // strides[axis])
    for first in range(start, stop, step):
        box = (*extent[:axis], (first, min(first + step, stop)), *extent[axis + 1 :])
        if step > 1 or axis + 1 == len(extent):
            yield box
        else:
            yield from boxes_of(box, strides, axis + 1)
