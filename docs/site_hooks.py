"""Hooks of the site: the rooms of the packages, and Mermaid's flowcharts without a script.

A code host draws them by itself; on the site that would take a library from another host.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT, _ROOMS = Path(__file__).parent.parent, "<!-- rooms -->"
_FENCE = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NODE = r"(\w+)\[([^\]]+)\]"
_LINE = re.compile(rf"\s*{_NODE}(?: --> {_NODE})?")
_ROW, _HEIGHT, _CHARACTER, _GAP, _WIDTH = 74, 26, 7.2, 14, 900
_TURNS = 8  # to put nodes below those that they are joined with
_HEAD = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#8492a6"/></marker></defs>'
)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with the rooms where it has a place for them, and each flowchart drawn."""
    if _ROOMS in markdown:
        command = [sys.executable, "-m", "tests.policy.architecture"]
        run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
        markdown = markdown.replace(_ROOMS, run.stdout)
    return _FENCE.sub(lambda fence: _draw(fence[1]), markdown)


def _draw(text: str) -> str:
    """Return a flowchart as SVG: what a node points at is below it."""
    labels: dict[str, str] = {}
    arrows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            labels[found[1]] = found[2]
            if found[3]:
                labels[found[3]] = found[4]
                arrows.setdefault(found[1], []).append(found[3])
    levels: dict[str, int] = {}
    for node in labels:
        _level(node, arrows, levels)
    rows = [
        [n for n in labels if levels[n] == level] for level in range(max(levels.values()), -1, -1)
    ]
    places = _arrange([part for row in rows for part in _broken(row, labels)], labels, arrows)
    height = max(y for _, y in places.values()) + _HEIGHT + 8
    lines = [
        f'<path d="M{places[a][0]:g} {places[a][1] + _HEIGHT:g}L{places[b][0]:g} {places[b][1]:g}" '
        'stroke="#8492a6" stroke-width="1.2" fill="none" marker-end="url(#end)"/>'
        for a, targets in arrows.items()
        for b in targets
    ]
    boxes = [_box(labels[node], *place) for node, place in places.items()]
    opening = (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" font-size="12" '
        'font-family="ui-monospace, Menlo, Consolas, monospace">'
    )
    return "".join(["<div>", opening, _HEAD, *lines, *boxes, "</svg></div>"])


def _level(node: str, arrows: Mapping[str, Sequence[str]], levels: dict[str, int]) -> int:
    """Return the length of the longest way down from a node."""
    if node not in levels:
        below = (_level(target, arrows, levels) for target in arrows.get(node, ()))
        levels[node] = 1 + max(below, default=-1)
    return levels[node]


def _broken(row: Sequence[str], labels: Mapping[str, str]) -> list[list[str]]:
    """Return a row as several, each as wide as the drawing."""
    rows: list[list[str]] = [[]]
    for node in row:
        if sum(_width(labels[n]) + _GAP for n in [*rows[-1], node]) > _WIDTH:
            rows.append([])
        rows[-1].append(node)
    return rows


def _arrange(
    rows: Sequence[list[str]], labels: Mapping[str, str], arrows: Mapping[str, Sequence[str]]
) -> dict[str, tuple[float, float]]:
    """Return the middle of the upper edge of each node."""
    joined: dict[str, list[str]] = {node: [] for node in labels}
    for node, targets in arrows.items():
        for target in targets:
            joined[node].append(target)
            joined[target].append(node)
    places: dict[str, tuple[float, float]] = {}
    for turn in range(_TURNS):
        for number, row in enumerate(rows):
            if turn:
                row.sort(key=lambda node: _mean(places, joined[node] or [node]))
            x = (_WIDTH - sum(_width(labels[node]) + _GAP for node in row)) / 2 + _GAP / 2
            for node in row:
                width = _width(labels[node])
                places[node] = (x + width / 2, number * _ROW + 4.0)
                x += width + _GAP
    return places


def _mean(places: Mapping[str, tuple[float, float]], nodes: Sequence[str]) -> float:
    return sum(places[node][0] for node in nodes) / len(nodes)


def _width(label: str) -> float:
    return _CHARACTER * len(label) + 16


def _box(label: str, x: float, y: float) -> str:
    width = _width(label)
    return (
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="{_HEIGHT}" rx="5" '
        f'fill="#334155"/><text x="{x:g}" y="{y + 17:g}" text-anchor="middle" fill="#fff">'
        f"{label}</text>"
    )
