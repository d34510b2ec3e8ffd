"""Draws `docs/assets/performance.svg`: the ratios in the table of `docs/reference/performance.md`.

`python docs/draw_performance.py` writes it anew. Each figure of a row is a point on a logarithmic
axis; left of the line at 1 less is taken than by the usual way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
PICTURE = DOCS / "assets" / "performance.svg"
LEFT, RIGHT, ROW, TOP = 380, 880, 24, 46
LOWEST, HIGHEST = 0.0001, 10.0
LESS, MORE, LINE, TEXT = "#16a34a", "#ea580c", "#8492a6", "#748094"
MAX_LABEL = 54  # characters of a row
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def draw() -> str:
    """Return the picture."""
    rows = list(_rows())
    height = TOP + ROW * len(rows) + 14
    parts = []
    for tick in (0.0001, 0.001, 0.01, 0.1, 1, 10):
        x = _place(tick)
        dash = "" if tick == 1 else ' stroke-dasharray="2 4"'
        line = f'<line x1="{x:g}" y1="{TOP - 12}" x2="{x:g}" y2="{height - 10}"'
        parts.append(f'{line} stroke="{LINE}"{dash}/>')
        parts.append(_text(x, TOP - 20, f"{tick:g}", "middle"))
    for number, (name, ratios) in enumerate(rows):
        y = TOP + ROW * number + 8
        cut = name[: MAX_LABEL - 1].rstrip(" ,:(") + "…"
        parts.append(_text(LEFT - 14, y + 4, name if len(name) <= MAX_LABEL else cut, "end"))
        for ratio in ratios:
            colour = LESS if ratio <= 1 else MORE
            parts.append(
                f'<circle cx="{_place(ratio):g}" cy="{y}" r="5" fill="{colour}">'
                f"<title>{escape(name)}: {ratio:g}</title></circle>"
            )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT + 20} {height}" role="img" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="11.5">'
    )
    title = "<title>Time and memory against the usual way, on a logarithmic axis</title>"
    return "\n".join([opening, title, *parts, "</svg>\n"])


def _rows() -> Iterator[tuple[str, list[float]]]:
    """Yield each row of the table whose figures are ratios to a peer."""
    page = (DOCS / "reference" / "performance.md").read_text()
    for name, cell in _ROW.findall(page):
        is_scaling = "against 1,000" in name or "ten times" in name
        if not is_scaling and re.match(r"\d", cell) and " s" not in cell:
            plain = re.sub(r"`([^`]*)`", r"\1", name)
            yield plain, [float(number) for number in re.findall(r"\d+\.\d+", cell)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y}" text-anchor="{anchor}" fill="{TEXT}">{escape(text)}</text>'


def _place(ratio: float) -> float:
    share = math.log(ratio / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(LEFT + share * (RIGHT - LEFT), 1)


if __name__ == "__main__":
    PICTURE.write_text(draw())
