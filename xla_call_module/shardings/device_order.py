"""In which order the devices of a mesh take the tiles of an array.

XLA writes an order as a list (version 1 of its format), or as the numbers from 0 on that are laid
out in some shape and transposed (version 2, "iota"), which stays short on any number of devices.

Source: xla/hlo/ir/tile_assignment.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xla_call_module.errors import FormatError

__all__ = ["DeviceOrder", "iota_order", "listed_order"]

# Far more than any mesh has; a file can name any number.
_MOST_DEVICES = 1 << 20


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
        if self.count > _MOST_DEVICES:
            raise FormatError(
                f"A sharding over {self.count:,} devices; at most {_MOST_DEVICES:,} are listed."
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
                axis, position, found = todo.pop(0)
                taken = math.gcd(found, left)
                if taken == min(found, left):
                    group.append(((axis, position), taken))
                    left //= taken
                    if found > taken:
                        todo.insert(0, (axis, position + 1, found // taken))
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
