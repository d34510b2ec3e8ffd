"""A mesh as text, for messages and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

_MAX_DEVICES_DRAWN = 64

# Names and sizes, the slowest first.
Axes = Sequence[tuple[str, int]]


def axes_text(axes: Axes) -> str:
    """Return the axes in a line.

    >>> axes_text([("data", 4), ("model", 2)])
    'data 4 x model 2'
    """
    return " x ".join(f"{_name(axes, index)} {size}" for index, (_, size) in enumerate(axes))


def draw_mesh(axes: Axes) -> list[str]:
    """Return a mesh as lines: its axes, then the devices by their place, unless there are many."""
    count = math.prod(size for _, size in axes)
    devices = f"{count} device{'s' if count > 1 else ''}"
    lines = [f"mesh of {devices}: {axes_text(axes) or 'no axes'}"]
    return lines if count > _MAX_DEVICES_DRAWN else [*lines, *draw_grid(axes, range(count))]


def draw_grid(axes: Axes, values: Sequence[int]) -> list[str]:
    r"""Return lines of numbers, one for each device: the last axis across, the others downwards.

    >>> print(*draw_grid([("data", 2), ("model", 2)], [0, 1, 2, 3]), sep="\n")
              model=0  model=1
      data=0        0        1
      data=1        2        3
    """
    if not axes:
        return [f"  {value}" for value in values]
    *outer, (_, columns) = axes
    last = _name(axes, len(outer))
    rows = [["", *(f"{last}={position}" for position in range(columns))]]
    for row in range(math.prod(size for _, size in outer)):
        numbers = values[row * columns : (row + 1) * columns]
        rows.append([_row_name(axes, row), *map(str, numbers)])
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            [cells[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        ).rstrip()
        for cells in rows
    ]


def _row_name(axes: Axes, row: int) -> str:
    """Return the place of a row along the axes that go downwards."""
    names: list[str] = []
    for index in reversed(range(len(axes) - 1)):
        row, position = divmod(row, axes[index][1])
        names.insert(0, f"{_name(axes, index)}={position}")
    return "  " + " ".join(names)


def _name(axes: Axes, index: int) -> str:
    return axes[index][0] or f"axis {index}"
