"""Pictures of a report as SVG: data flow, sizes, releases, and arrays on a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from bridge.inspecting.markup import IMAGE_STYLE, element
from bridge.inspecting.report import FileReport, SignatureReport
from bridge.inspecting.sharding import ArraySharding, ShardingReport
from bridge.inspecting.tensor_report import TensorReport
from bridge.inspecting.wording import aval, counted, size
from xla_call_module.shardings.mesh_placement import MeshAxis
from xla_call_module.versions import RELEASES

_WIDTH = 920
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 250, 46, 12
_MODULE_X, _MODULE_WIDTH = 335, 250
_MAX_TENSORS = 24
_MAX_AREAS = 400
_SIZES_HEIGHT = 300
_CELL = 34
_MAX_CELLS = 32
_MAX_ARRAYS = 200
# Of the image of a mesh: the width of a letter, the height of a line, and the margin.
_LETTER, _LINE, _MARGIN = 7.3, 20, 12
# Neighbours differ most where hues are a golden angle apart.
_HUE_STEP = 137.508


def _svg(width: float, height: float, *children: Element, label: str) -> Element:
    return element(
        "svg",
        element("title", label),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def _rect(
    x: float, y: float, width: float, height: float, kind: str, fill: str | None = None
) -> Element:
    return element(
        "rect",
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        width=f"{width:.1f}",
        height=f"{height:.1f}",
        rx=6,
        class_=kind,
        fill=fill,
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Element:
    return element(
        "text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind or None, text_anchor=anchor
    )


def _fit(text: str, width: float, letter: float = 7.2) -> str:
    """Return the text, cut to a width; letters are taken to be of one width."""
    most = max(1, int(width / letter))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def draw_flow(signature: SignatureReport, variable_bytes: int) -> Element:
    """Draw a signature: inputs and variables, the modules of every order, outputs."""
    inputs = _column(signature.inputs, 0, "input")
    outputs = _column(signature.outputs, _WIDTH - _BOX_WIDTH, "output")
    rows = max(len(inputs), len(outputs), 1)
    module_height = 40 + 40 * len(signature.orders)
    below = _BOX_HEIGHT + 34 if signature.parameters else 0
    height = max(rows * (_BOX_HEIGHT + _GAP) - _GAP, module_height + below) + 4
    top = max(2.0, (height - module_height - below) / 2)
    middle = top + module_height / 2
    drawn = [_module(signature, top, module_height)]
    for boxes, side in ((inputs, "in"), (outputs, "out")):
        start = max(2.0, middle - (len(boxes) * (_BOX_HEIGHT + _GAP) - _GAP) / 2)
        for index, (box, used) in enumerate(boxes):
            y = start + index * (_BOX_HEIGHT + _GAP)
            drawn.append(element("g", box, transform=f"translate(0 {y:.1f})"))
            if used:
                drawn.append(_wire(side, y + _BOX_HEIGHT / 2, middle))
    if signature.parameters:
        drawn.append(_variables(signature, variable_bytes, top + module_height))
    return _svg(_WIDTH, height, *drawn, label=f"Data flow of {signature.key}")


def _column(tensors: Sequence[TensorReport], x: float, kind: str) -> list[tuple[Element, bool]]:
    shown = tensors if len(tensors) <= _MAX_TENSORS else tensors[: _MAX_TENSORS - 1]
    boxes = [
        (_box(x, t.name, aval(t), f"{t.name}: {aval(t)} = {t.path}", kind, used=t.used), t.used)
        for t in shown
    ]
    if rest := len(tensors) - len(shown):
        boxes.append((_box(x, f"and {rest} more", "", "", kind, used=True), True))
    return boxes


def _box(x: float, name: str, note: str, title: str, kind: str, *, used: bool) -> Element:
    return element(
        "g",
        element("title", title or name),
        _rect(x + 1, 1, _BOX_WIDTH - 2, _BOX_HEIGHT - 2, kind if used else f"{kind} unused"),
        _text(x + 12, 19, _fit(name, _BOX_WIDTH - 24), "strong"),
        _text(x + 12, 36, _fit(note if used else f"{note}, unused", _BOX_WIDTH - 24, 6.2), "small"),
    )


def _module(signature: SignatureReport, top: float, height: float) -> Element:
    x, width = _MODULE_X, _MODULE_WIDTH
    rows = [
        _rect(x, top, width, height, "module"),
        _text(x + 14, top + 24, _fit(signature.function, width - 28, 7.6), "strong"),
    ]
    for index, order in enumerate(signature.orders):
        y = top + 40 + 40 * index
        name = order.title
        facts = f"{size(order.module_bytes)} · StableHLO {order.stablehlo}"
        rows += [
            element(
                "g",
                element(
                    "title", f"{name} {order.function}: runs from TensorFlow {order.tensorflow}"
                ),
                _rect(x + 8, y - 4, width - 16, 36, "off"),
                _text(x + 18, y + 11, name),
                _text(x + 18, y + 26, facts, "small"),
                _text(x + width - 16, y + 11, f"TF {order.tensorflow}", "small", "end"),
            )
        ]
    return element("g", element("title", signature.function), *rows)


def _wire(side: str, y: float, middle: float) -> Element:
    start, end = (
        (_BOX_WIDTH, _MODULE_X)
        if side == "in"
        else (_MODULE_X + _MODULE_WIDTH, _WIDTH - _BOX_WIDTH)
    )
    first, last = (y, middle) if side == "in" else (middle, y)
    bend = (start + end) / 2
    path = f"M{start} {first:.1f} C{bend} {first:.1f} {bend} {last:.1f} {end - 7} {last:.1f}"
    tip = f"{end - 8},{last - 4:.1f} {end},{last:.1f} {end - 8},{last + 4:.1f}"
    return element(
        "g", element("path", d=path, class_="wire"), element("polygon", points=tip, class_="tip")
    )


def _variables(signature: SignatureReport, variable_bytes: int, top: float) -> Element:
    x, y, center = _MODULE_X, top + 30, _MODULE_X + _MODULE_WIDTH / 2
    title = counted(len(signature.parameters), "variable")
    tip = f"{center - 4},{top + 9:.1f} {center},{top + 1:.1f} {center + 4},{top + 9:.1f}"
    return element(
        "g",
        element("path", d=f"M{center} {y:.1f} L{center} {top + 8:.1f}", class_="wire"),
        element("polygon", points=tip, class_="tip"),
        element("title", ", ".join(signature.parameters[:50])),
        _rect(x, y, _MODULE_WIDTH, _BOX_HEIGHT, "bound"),
        _text(x + 12, y + 19, title, "strong"),
        _text(x + 12, y + 36, size(variable_bytes), "small"),
    )


@dataclass(frozen=True, slots=True)
class Area:
    """A variable, a constant or a module (`graph`) with its size in bytes."""

    name: str
    bytes: int
    kind: str


def areas_of(report: FileReport) -> tuple[Area, ...]:
    """Return the variables, constants and modules of a file, the largest first."""
    areas = [
        Area(p.name, p.bytes, "constant" if p.constant else "variable") for p in report.parameters
    ]
    areas += [
        Area(f"{s.key}: {o.title}", o.module_bytes, "graph")
        for s in report.signatures
        for o in s.orders
    ]
    return tuple(sorted(areas, key=lambda area: -area.bytes))


def draw_sizes(areas: Sequence[Area]) -> Element:
    """Draw a tree map: a rectangle for each area, and one for the smallest ones together."""
    shown = [area for area in areas[:_MAX_AREAS] if area.bytes]
    if rest := [area for area in areas[_MAX_AREAS:] if area.bytes]:
        total = sum(area.bytes for area in rest)
        shown.append(Area(f"{len(rest)} others", total, rest[0].kind))
    placed = _place(shown, 0.0, 0.0, float(_WIDTH), float(_SIZES_HEIGHT))
    drawn = [_area(area, *place) for area, place in placed]
    return _svg(_WIDTH, _SIZES_HEIGHT, *drawn, label="Sizes of variables, constants and modules")


_Place = tuple[float, float, float, float]


def _place(
    areas: Sequence[Area], x: float, y: float, width: float, height: float
) -> list[tuple[Area, _Place]]:
    """Return the place of each area: halves of about the same weight along the longer side."""
    if len(areas) < 2:
        return [(area, (x, y, width, height)) for area in areas]
    total, first, split = sum(area.bytes for area in areas), 0, 0
    while split < len(areas) - 1 and (split == 0 or 2 * first + areas[split].bytes <= total):
        first += areas[split].bytes
        split += 1
    share = first / total
    head, tail = areas[:split], areas[split:]
    if width >= height:
        cut = width * share
        return _place(head, x, y, cut, height) + _place(tail, x + cut, y, width - cut, height)
    cut = height * share
    return _place(head, x, y, width, cut) + _place(tail, x, y + cut, width, height - cut)


def _area(area: Area, x: float, y: float, width: float, height: float) -> Element:
    parts = [
        element("title", f"{area.name}: {size(area.bytes)}"),
        _rect(x, y, width, height, area.kind),
    ]
    if width > 60 and height > 24:
        parts.append(_text(x + 10, y + 19, _fit(area.name, width - 16, 8.2), "strong"))
    if width > 60 and height > 42:
        parts.append(_text(x + 10, y + 36, size(area.bytes), "small"))
    return element("g", *parts)


def draw_releases(report: FileReport) -> Element:
    """Draw TensorFlow's releases in a row, those filled that read all of the file."""
    orders = [order for signature in report.signatures for order in signature.orders]
    step = _WIDTH / len(RELEASES)
    drawn = []
    for index, release in enumerate(RELEASES):
        reasons = [
            o.reason for order in orders for o in order.obstacles if o.tensorflow == release.name
        ]
        x, runs = index * step, not reasons
        why = "reads the file" if runs else reasons[0]
        drawn.append(
            element(
                "g",
                element("title", f"TensorFlow {release.name}: {why}"),
                _rect(x + 2, 2, step - 4, 44, "output" if runs else "off"),
                _text(x + step / 2, 21, release.name, "strong", "middle"),
                _text(x + step / 2, 37, "reads it" if runs else "does not", "small", "middle"),
            )
        )
    return _svg(_WIDTH, 48, *drawn, label="Releases of TensorFlow that read the file")


def _color(tile: int) -> str:
    return f"hsl({(205 + tile * _HUE_STEP) % 360:.0f} 52% {74 - 7 * (tile % 3)}%)"


def _draw_mesh(mesh: Sequence[MeshAxis], tiles: Sequence[int], label: str) -> Element:
    """Draw the devices in a grid, each with the number and the colour of its part.

    The last axis goes from left to right, the others downwards; of a large mesh the first devices
    are drawn.
    """
    *outer, last = mesh
    columns = min(last.size, _MAX_CELLS)
    rows = min(math.prod(axis.size for axis in outer), _MAX_CELLS)
    down = _fit(" · ".join(axis.name or f"axis {i}" for i, axis in enumerate(outer)), 90, 6)
    left, top = (22 + 6 * len(down) if outer else 4), 22
    drawn = [_text(left, 14, f"{last.name or f'axis {len(outer)}'} →", "small")]
    if outer:
        drawn.append(_text(0, top + 20, f"{down} ↓", "small"))
    for row in range(rows):
        for column in range(columns):
            tile = tiles[row * last.size + column]
            drawn.append(_tile(left + column * _CELL, top + row * _CELL, tile))
    return _svg(left + columns * _CELL + 4, top + rows * _CELL + 4, *drawn, label=label)


def _tile(x: float, y: float, tile: int, width: float = _CELL, height: float = _CELL) -> Element:
    parts = [
        element("title", f"part {tile}"),
        _rect(x, y, width, height, "tile", fill=_color(tile)),
    ]
    if min(width, height) >= 16:
        parts.append(_text(x + width / 2, y + height / 2 + 4, str(tile), "ontile", "middle"))
    return element("g", *parts)


def _draw_array(array: ArraySharding) -> Element:
    """Draw an array cut into its parts: the last split dimension across, the one before down."""
    down, across = _directions(array.parts)
    strides = [math.prod(array.parts[index + 1 :]) for index in range(len(array.parts))]
    rows, columns = (
        1 if index is None else min(array.parts[index], _MAX_CELLS) for index in (down, across)
    )
    width, height = 170.0 / columns, 136.0 / rows
    drawn = [
        _tile(
            column * width,
            row * height,
            sum(i * strides[d] for i, d in ((row, down), (column, across)) if d is not None),
            width,
            height,
        )
        for row in range(rows)
        for column in range(columns)
    ]
    return _svg(170, 136, *drawn, label=f"{array.path} in its parts")


def draw_parts(array: ArraySharding, sharding: ShardingReport) -> tuple[Element, Element]:
    """Draw an array in its parts, and the devices that have them."""
    label = f"Which part of {array.path} each device has"
    return _draw_array(array), _draw_mesh(sharding.mesh, array.tiles, label)


def _directions(parts: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the dimensions drawn downwards and across: that of columns across, if it is split."""
    split = [index for index, count in enumerate(parts) if count > 1]
    if not split:
        return None, None
    if len(split) == 1:
        is_last = len(parts) > 1 and split[0] == len(parts) - 1
        return (None, split[0]) if is_last else (split[0], None)
    return split[-2], split[-1]


def draw_sharding_picture(sharding: ShardingReport) -> Element:
    """Draw each array with its parts in colours, and beside it the devices in these colours."""
    drawn = [_text(_MARGIN, _MARGIN + 12, sharding.title)]
    width, top = _MARGIN + _LETTER * len(sharding.title), float(_MARGIN + _LINE + 8)
    for array in sharding.arrays[:_MAX_ARRAYS]:
        caption = f"{array.label}: {array.partition}"
        drawn.append(_text(_MARGIN, top + 12, caption))
        width, top, left = max(width, _MARGIN + _LETTER * len(caption)), top + _LINE, _MARGIN
        bottom = top
        for picture in draw_parts(array, sharding) if array.is_split else ():
            drawn.append(element("g", picture, transform=f"translate({left:g} {top:g})"))
            left += int(float(picture.get("width", 0))) + 24
            bottom = max(bottom, top + float(picture.get("height", 0)))
        width, top = max(width, left), bottom + 16
    if (rest := len(sharding.arrays) - _MAX_ARRAYS) > 0:
        drawn.append(_text(_MARGIN, top + 12, f"and {rest} other arrays"))
        top += _LINE
    width += _MARGIN
    page = element("rect", class_="page", width=f"{width:g}", height=f"{top:g}")
    style = element("style", IMAGE_STYLE)
    return _svg(width, top, style, page, *drawn, label=sharding.title)
