"""Draws `docs/assets/overview.svg`: who writes and who reads what.

`python docs/draw_overview.py` writes it anew. Each text stands on a box of its own colour, so
that the picture can be read on white and on dark.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "assets" / "overview.svg"

WIDTH, HEIGHT = 480, 612
BLUE, GREEN, ORANGE, GREY, LINE = "#1d4ed8", "#15803d", "#b45309", "#475569", "#8492a6"


def draw() -> str:
    """Return the picture, which is narrow enough for a telephone."""
    parts = [
        _frame(10, 16, 460, 160, "A process with JAX"),
        _box(24, 44, 206, 52, BLUE, "a function", "jax.jit, jax.export"),
        _box(24, 108, 206, 52, BLUE, "a network", "Flax, Haiku, Equinox, Keras"),
        _box(250, 44, 206, 116, GREEN, "JAX again", "jit, grad, vmap, meshes", "no TensorFlow"),
        # What is between
        _box(24, 250, 206, 84, ORANGE, "SavedModel", "StableHLO, gradients,",
             "variables, shardings"),
        _box(250, 250, 98, 84, ORANGE, "ONNX", "opset", "18 to 26"),
        _box(358, 250, 98, 84, ORANGE, "LiteRT", "TFLite's", "flatbuffer"),
        # What reads
        _frame(10, 400, 460, 202, "Processes without JAX"),
        _box(24, 428, 206, 48, GREEN, "TensorFlow", "calls it, trains it further"),
        _box(24, 484, 206, 48, GREEN, "TensorFlow Serving", "with warmup and batching"),
        _box(24, 540, 98, 48, GREEN, "Keras", "a layer"),
        _box(132, 540, 98, 48, GREY, "inspect", "runs nothing"),
        _box(250, 428, 98, 160, GREEN, "ONNX", "Runtime,", "browsers"),
        _box(358, 428, 98, 160, GREEN, "LiteRT", "telephones,", "browsers"),
        # What goes from one to the other
        _arrow(76, 160, 76, 250, "save"), _arrow(160, 250, 270, 160, "load, to_jax"),
        _arrow(320, 176, 320, 250, "to_onnx"), _arrow(414, 176, 414, 250, "to_litert"),
        _arrow(127, 334, 127, 390), _arrow(299, 334, 299, 390), _arrow(407, 334, 407, 390),
    ]  # fmt: skip
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
            f'  width="{WIDTH}" height="{HEIGHT}"',
            '  font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">',
            "<title>A process with JAX writes a SavedModel, an ONNX model or a LiteRT model;",
            "TensorFlow, its server, Keras, ONNX Runtime, LiteRT and JAX read them.</title>",
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
