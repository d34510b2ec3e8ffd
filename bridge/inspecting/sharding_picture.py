"""The arrays of a call on their mesh as one SVG image that stands by itself."""

from __future__ import annotations

import math
import re

from bridge.core.mesh_text import axes_text
from bridge.inspecting.markup import Markup, element
from bridge.inspecting.pictures import draw_array, draw_mesh
from bridge.inspecting.sharding import ArraySharding, ShardingReport

__all__ = ["draw_sharding_picture"]

_MOST_ARRAYS = 200
_LETTER, _LINE, _MARGIN = 7.3, 20, 12
_STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #1d1d1b; } .small { font-size: 11px; } "
    ".ontile { font-size: 11px; fill: #14202b; } .tile { stroke: #ffffff; stroke-width: 2; } "
    ".page { fill: #ffffff; }"
)


def draw_sharding_picture(sharding: ShardingReport) -> Markup:
    """For each array its parts, in colours, and beside them the devices in those colours."""
    axes = [(axis.name, axis.size) for axis in sharding.mesh]
    count = math.prod(size for _, size in axes)
    title = f"{count} devices: {axes_text(axes)}, partitioned by {sharding.partitioner}"
    drawn = [_text(title, _MARGIN + 12)]
    width, top = _MARGIN + _LETTER * len(title), float(_MARGIN + _LINE + 8)
    for array in sharding.arrays[:_MOST_ARRAYS]:
        caption = _caption(array)
        drawn.append(_text(caption, top + 12))
        width, top, left = max(width, _MARGIN + _LETTER * len(caption)), top + _LINE, _MARGIN
        bottom = top
        for picture in _pictures(array, sharding):
            size = _size(picture)
            drawn.append(element("g", picture, transform=f"translate({left:g} {top:g})"))
            left, bottom = left + int(size[0]) + 24, max(bottom, top + size[1])
        width, top = max(width, left), bottom + 16
    if (rest := len(sharding.arrays) - _MOST_ARRAYS) > 0:
        drawn.append(_text(f"and {rest} other arrays", top + 12))
        top += _LINE
    width += _MARGIN
    return element(
        "svg",
        element("title", title),
        element("style", Markup(_STYLE)),
        element("rect", class_="page", width=f"{width:g}", height=f"{top:g}"),
        *drawn,
        viewBox=f"0 0 {width:g} {top:g}",
        width=f"{width:g}",
        height=f"{top:g}",
        xmlns="http://www.w3.org/2000/svg",
    )


def _pictures(array: ArraySharding, sharding: ShardingReport) -> list[Markup]:
    if not array.tiles or max(array.parts, default=1) == 1:
        return []
    label = f"Which part of {array.path} each device has"
    return [draw_array(array), draw_mesh(sharding.mesh, array.tiles, label)]


def _caption(array: ArraySharding) -> str:
    what = f"{array.role} {array.path} [{','.join(map(str, array.shape))}]: "
    if not array.tiles:
        return what + array.text
    if max(array.parts, default=1) == 1:
        return what + "whole on every device"
    return what + f"split by ({', '.join('+'.join(axes) or 'whole' for axes in array.axes)})"


def _size(picture: Markup) -> tuple[float, float]:
    found = re.match(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    assert found is not None, "the pictures say how large they are"
    return float(found[1]), float(found[2])


def _text(text: str, y: float) -> Markup:
    return element("text", text, x=_MARGIN, y=f"{y:g}")
