"""The arrays of a call on their mesh as lines of text, for the terminal."""

from __future__ import annotations

import math

from bridge.core.mesh_text import axes_text, draw_grid
from bridge.inspecting.sharding import ArraySharding, ShardingReport

__all__ = ["draw_sharding"]

_MOST_DEVICES_DRAWN = 64
_MOST_ARRAYS = 32


def draw_sharding(sharding: ShardingReport) -> list[str]:
    """The mesh with its devices, then each array with the part that each device has.

    What comes from the file is in it as it is, and may hold what a terminal obeys.
    """
    axes = [(axis.name, axis.size) for axis in sharding.mesh]
    devices = math.prod(size for _, size in axes)
    drawn = devices <= _MOST_DEVICES_DRAWN
    lines = [f"mesh of {devices} devices: {axes_text(axes)} ({sharding.partitioner})"]
    lines += draw_grid(axes, range(devices)) if drawn else []
    for array in sharding.arrays[:_MOST_ARRAYS]:
        lines.append(_describe(array))
        if drawn and array.tiles and max(array.parts, default=1) > 1:
            lines += draw_grid(axes, array.tiles)
    if (rest := len(sharding.arrays) - _MOST_ARRAYS) > 0:
        lines.append(f"and {rest} other arrays")
    return lines


def _describe(array: ArraySharding) -> str:
    shape = ",".join(map(str, array.shape))
    if not array.tiles:
        return f"{array.role} {array.path} [{shape}]: {array.text}"
    if max(array.parts, default=1) == 1:
        return f"{array.role} {array.path} [{shape}]: whole on every device"
    dims = ", ".join("+".join(axes) or "whole" for axes in array.axes)
    parts = " x ".join(map(str, array.parts))
    return f"{array.role} {array.path} [{shape}]: split by ({dims}), {parts} parts; on each device:"
