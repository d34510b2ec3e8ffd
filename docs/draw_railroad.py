"""Draws `docs/assets/args_railroad.svg`: the grammar of `args=`, to be read along the rails.

`python docs/draw_railroad.py` writes it anew.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "assets" / "args_railroad.svg"

ROW, CHARACTER, GAP, LEFT = 42, 8.6, 22, 120
SIGN, RULE, LINE = "#b45309", "#1d4ed8", "#8492a6"

# Each rule: the ways through it. Quoted words are written as they are, the others are rules or
# names; `<` is where a rail goes back to, for one more of what follows a comma.
RULES = {
    "arguments": (("argument", "<','"),),
    "argument": (("tree",), ("NAME", "'='", "tree")),
    "tree": (
        ("array",),
        ("'('", "tree", "<','", "')'"),
        ("'['", "tree", "<','", "']'"),
        ("'{'", "member", "<','", "'}'"),
        ("'None'",),
    ),
    "member": (("KEY", "':'", "tree"),),
    "array": (("DTYPE", "'['", "dimension", "<','", "']'"), ("DTYPE", "'['", "']'")),
    "dimension": (("NUMBER",), ("NAME or expression",), ("'?'",), ("'None'",)),
}


def draw() -> str:
    """Return the picture."""
    parts, top = [], 24.0
    for name, ways in RULES.items():
        drawn = [_way(way, top + ROW * number) for number, way in enumerate(ways)]
        right = max(width for _, width in drawn) + 24
        parts.append(_text(8, top + 5, name, "start", RULE, bold=True))
        for number, (markup, width) in enumerate(drawn):
            y = top + ROW * number
            parts.append(_rail(LEFT - 24, top, LEFT, y) + _line(width, y, right, y) + markup)
            parts.append(_line(right, y, right, top) if number else _stop(right, y))
        top += ROW * len(ways) + 26
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {top:g}" role="img"',
            '  font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">',
            "<title>The grammar of args= as a railroad</title>",
            *parts,
            "</svg>\n",
        ]
    )


def _way(way: tuple[str, ...], y: float) -> tuple[str, float]:
    """Return the boxes of one way and where they end; a `<` draws the rail back above them."""
    x, parts, repeated = float(LEFT), [], 0.0
    for item in way:
        word = item.removeprefix("<").strip("'")
        width = CHARACTER * len(word) + 16
        if item.startswith("<"):
            middle = (repeated + x - GAP) / 2
            parts.append(_back(repeated - 8, x - GAP + 8, y))
            parts.append(_box(middle - width / 2, y + 17, width, word, SIGN, height=16))
            continue
        parts.append(_line(x, y, x + GAP, y))
        x += GAP
        repeated = x
        colour = SIGN if item.startswith("'") else RULE
        parts.append(_box(x, y, width, word, colour))
        x += width + GAP
        parts.append(_line(x - GAP, y, x, y))
    return "".join(parts), x


def _box(x: float, y: float, width: float, word: str, colour: str, height: int = 24) -> str:
    rect = (
        f'<rect x="{x:g}" y="{y - height / 2:g}" width="{width:g}" height="{height}" '
        f'rx="{12 if colour == SIGN else 3}" fill="{colour}"/>'
    )
    return rect + _text(x + width / 2, y + 4.5, word, "middle", "#fff")


def _text(x: float, y: float, word: str, anchor: str, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="700"' if bold else ""
    fill = LINE if anchor == "start" else colour
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}"{weight}>'
        f"{escape(word)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return _path(f"M{x1:g} {y1:g}L{x2:g} {y2:g}")


def _rail(x1: float, y1: float, x2: float, y2: float) -> str:
    return _path(f"M{x1:g} {y1:g}V{y2:g}H{x2:g}")


def _back(x1: float, x2: float, y: float) -> str:
    return _path(f"M{x2:g} {y:g}V{y + 17:g}H{x1:g}V{y:g}")


def _stop(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{LINE}"/>'


def _path(line: str) -> str:
    return f'<path d="{line}" fill="none" stroke="{LINE}" stroke-width="2"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
