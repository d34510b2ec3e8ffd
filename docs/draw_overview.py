"""Draws `docs/assets/overview.svg`: who writes and who reads what.

`python docs/draw_overview.py` writes it anew. Each text stands on a box of its own colour, so
that the picture can be read on white and on dark.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "assets" / "overview.svg"

WIDTH, HEIGHT = 920, 430
BLUE, GREEN, ORANGE, GREY, LINE = "#1d4ed8", "#15803d", "#b45309", "#475569", "#8492a6"


def draw() -> str:
    """Return the picture."""
    parts = [
        # What writes
        _frame(10, 10, 250, 410, "A process with JAX"),
        _box(30, 50, 210, 74, BLUE, "a function, jax.jit", "an Exported"),
        _box(30, 138, 210, 74, BLUE, "Flax, nnx, Haiku,", "Equinox, Keras on JAX"),
        _box(30, 296, 210, 94, GREEN, "JAX again", "jit, grad, vmap, meshes", "no TensorFlow"),
        # What is between
        _box(370, 50, 190, 162, ORANGE, "SavedModel",
             "StableHLO, gradients,", "variables, shardings",
             "for TensorFlow 2.14 – 2.21"),
        _box(370, 296, 190, 94, ORANGE, "ONNX model", "opset 21 or 26"),
        # What reads
        _frame(660, 10, 250, 410, "Processes without JAX"),
        _box(680, 50, 210, 50, GREEN, "TensorFlow", "calls it, trains it further"),
        _box(680, 112, 210, 50, GREEN, "TensorFlow Serving", "with warmup and batching"),
        _box(680, 174, 210, 50, GREEN, "Keras", "a layer with its weights"),
        _box(680, 236, 210, 50, GREY, "inspect, diff", "look at it, run nothing"),
        _box(680, 318, 210, 50, GREEN, "ONNX Runtime", "and what else reads ONNX"),
        # What goes from one to the other
        _arrow(240, 110, 370, 110, "bridge.save"),
        _arrow(370, 200, 240, 320, "bridge.load"),
        _arrow(560, 90, 680, 75), _arrow(560, 130, 680, 137), _arrow(560, 160, 680, 199),
        _arrow(560, 190, 680, 258),
        _arrow(440, 212, 440, 296, "bridge.to_onnx"),
        _arrow(560, 343, 680, 343),
    ]  # fmt: skip
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
            '  font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">',
            "<title>A process with JAX writes a SavedModel or an ONNX model; TensorFlow,",
            "TensorFlow Serving, Keras, ONNX Runtime and JAX read them.</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"',
            f'  markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker>',
            "</defs>",
            *parts,
            "</svg>\n",
        ]
    )


def _frame(x: int, y: int, width: int, height: int, title: str) -> str:
    """Return a dashed frame with a title on a box of its own."""
    label = _box(x + 20, y - 10, width - 40, 26, GREY, title, small=True)
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="12" fill="none" '
        f'stroke="{LINE}" stroke-dasharray="5 4"/>\n{label}'
    )


def _box(
    x: int, y: int, width: int, height: int, colour: str, *lines: str, small: bool = False
) -> str:
    """Return a box with its lines in the middle, the first of them bold."""
    step = 19
    top = y + height / 2 - step * (len(lines) - 1) / 2 + 5
    texts = [
        f'<text x="{x + width / 2:g}" y="{top + step * number:g}" text-anchor="middle" '
        f'fill="#fff" font-size="{13 if number or small else 15}"'
        f"{'' if number else ' font-weight=' + chr(34) + '600' + chr(34)}>{escape(line)}</text>"
        for number, line in enumerate(lines)
    ]
    rect = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" '
        f'stroke="{LINE}" stroke-opacity=".4"/>'
    )
    return "\n".join([rect, *texts])


def _arrow(x1: int, y1: int, x2: int, y2: int, label: str = "") -> str:
    """Return an arrow, with its label on a box in the middle."""
    line = (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="2" '
        'marker-end="url(#head)"/>'
    )
    if not label:
        return line
    width = 8 * len(label) + 10
    middle = (x1 + x2) // 2 - width // 2, (y1 + y2) // 2 - 12
    return f"{line}\n{_box(*middle, width, 24, '#0f172a', label, small=True)}"


if __name__ == "__main__":
    PICTURE.write_text(draw())
