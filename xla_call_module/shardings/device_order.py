"""The order of the devices of a sharding: one by one, or in XLA's short form, an iota.

An iota is the numbers from 0 on, laid out in a shape whose axes are then permuted.

Source: xla/hlo/ir/tile_assignment.h, `IotaTileAssignment`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xla_call_module.errors import FormatError

# Far more than any mesh has; a file can name any number.
MAX_DEVICES = 1 << 20

# A part of an axis of the shape that is laid out: the axis, the position in it, and the size.
_Factor = tuple[int, int, int]


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
            f"{self.transpose} are not an order of devices: expected either, each device and each "
            "axis once. To do: write the sharding again."
        )

    @property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.reshape) if self.reshape else len(self.listed)

    @property
    def is_iota(self) -> bool:
        """Return whether the order is in the short form."""
        return bool(self.reshape)

    def devices(self) -> tuple[int, ...]:
        """Return the devices one by one."""
        if not self.is_iota:
            return self.listed
        if self.count > MAX_DEVICES:
            raise FormatError(
                f"A sharding over {self.count:,} devices; at most {MAX_DEVICES:,} are listed."
            )
        laid_out = np.arange(self.count).reshape(self.reshape).transpose(self.transpose)
        return tuple(map(int, laid_out.ravel()))

    def canonical(self) -> DeviceOrder:
        """Return the same order in the fewest axes, as XLA writes it; a list stays a list."""
        if not self.is_iota:
            return self
        return _from_factors([(axis, 0, self.reshape[axis]) for axis in self.transpose])

    def transposed(
        self, tiles: Sequence[int], axes: Sequence[int], *, last_sorted: bool = False
    ) -> DeviceOrder:
        """Return the order after the axes of the tiles were permuted."""
        moving = [axis for axis in axes if tiles[axis] > 1]
        if not last_sorted and moving == sorted(moving):
            return self.canonical()
        groups = self.canonical()._factors_of(tiles) if self.is_iota else None
        if groups is None:
            last = math.prod([tiles[axis] for axis in axes[-1:]])
            moved = np.reshape(self.devices(), tiles).transpose(axes).reshape(-1, last)
            moved = np.sort(moved, axis=1) if last_sorted else moved
            return listed_order(moved.ravel().tolist())
        permuted = [groups[axis] for axis in axes]
        if last_sorted:
            permuted[-1] = sorted(permuted[-1])
        return _from_factors([factor for group in permuted for factor in group])

    def _factors_of(self, tiles: Sequence[int]) -> list[list[_Factor]] | None:
        """Return the factors that make up each axis of the tiles; None where one cuts across."""
        rest = [(axis, 0, self.reshape[axis]) for axis in self.transpose]
        groups: list[list[_Factor]] = []
        for size in tiles:
            group = []
            left = size
            while left > 1:
                axis, position, length = rest.pop(0)
                taken = math.gcd(length, left)
                if taken < min(length, left):
                    return None
                group.append((axis, position, taken))
                left //= taken
                if length > taken:
                    rest.insert(0, (axis, position + 1, length // taken))
            groups.append(group)
        return groups


def iota_order(reshape: Sequence[int], transpose: Sequence[int] = ()) -> DeviceOrder:
    """Return the numbers from 0 on in a shape whose axes are permuted; by default they are not.

    >>> iota_order([2, 4], [1, 0]).devices()
    (0, 4, 1, 5, 2, 6, 3, 7)
    """
    return DeviceOrder(tuple(reshape), tuple(transpose) or tuple(range(len(reshape))))


def listed_order(devices: Sequence[int]) -> DeviceOrder:
    """Return the order that names the devices one by one."""
    return DeviceOrder(listed=tuple(map(int, devices)))


def _from_factors(factors: Sequence[_Factor]) -> DeviceOrder:
    """Return the iota whose transposed axes are these; neighbours that stay so become one axis."""
    factors = [factor for factor in factors if factor[-1] > 1] or [(0, 0, 1)]
    order = sorted(range(len(factors)), key=lambda index: factors[index])
    place = {index: position for position, index in enumerate(order)}
    runs: list[list[int]] = []
    for index in range(len(factors)):
        if runs and place[index] == place[runs[-1][-1]] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    sizes = [math.prod(factors[index][-1] for index in run) for run in runs]
    ascending = sorted(range(len(runs)), key=lambda number: place[runs[number][0]])
    rank = {number: position for position, number in enumerate(ascending)}
    return DeviceOrder(
        tuple(sizes[number] for number in ascending), tuple(rank[n] for n in range(len(runs)))
    )
