"""The table of `benchmark`: a row for each runtime, as text, JSON and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.inspecting.markup import element, to_markup
from bridge.inspecting.wording import size

_WIDTH, _PANEL, _BAR, _MARGIN, _LABEL = 760, 30, 22, 12, 130
_COLORS = {
    "JAX": "#4c78a8", "TensorFlow": "#f58518", "ONNX Runtime": "#54a24b", "LiteRT": "#b279a2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """The figures of one runtime, in a process of its own, on one core.

    Attributes:
        runtime: its name.
        version: its version.
        digits: to how many decimal digits every result is that of JAX, relative to the largest
            number of its array; None where there is nothing to compare with.
        bytes: the size of the file that it runs.
        first_call: the seconds from the file to the first results; imports do not count.
        latency: the median of the seconds of a call.
        memory: the bytes that the process has had at most, libraries included; 0 for unknown.
        problem: why it does not run the file; empty where it does.
    """

    runtime: str
    version: str
    digits: float | None = None
    bytes: int = 0
    first_call: float = 0.0
    latency: float = 0.0
    memory: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """A file run by every runtime at hand.

    Attributes:
        path: the file.
        signature: the signature that was called.
        inputs: the inputs, such as `x: float32[8,3]`.
        rows: a row for each runtime.
    """

    path: str
    signature: str
    inputs: tuple[str, ...]
    rows: tuple[BenchmarkRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields."""
        return asdict(self)


def seconds(value: float) -> str:
    """Return a time with three digits and its unit.

    >>> seconds(0.0001234), seconds(2.0)
    ('123 µs', '2 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def print_benchmark(report: BenchmarkReport, console: Console) -> None:
    """Print the table, and why runtimes are missing in it."""
    console.print(Text(report.path, style="bold"), soft_wrap=True)
    console.print(Text(f"{report.signature}({', '.join(report.inputs)})"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("runtime", "digits", "size", "first call", "latency", "peak memory"):
        table.add_column(heading, justify="left" if heading == "runtime" else "right")
    for row in report.rows:
        name = f"{row.runtime} {row.version}".strip()
        if not row.problem:
            table.add_row(name, *(show(row) for _, show, _ in _COLUMNS))
    console.print(table)
    for row in report.rows:
        if row.problem:
            console.print(Text(f"{row.runtime} {row.version}: {row.problem}"), soft_wrap=True)


def _digits(row: BenchmarkRow) -> str:
    return "-" if row.digits is None else f"{row.digits:.1f}"


_COLUMNS: tuple[tuple[str, Callable[[BenchmarkRow], str], Callable[[BenchmarkRow], float]], ...] = (
    ("right digits", _digits, lambda row: row.digits or 0.0),
    ("size", lambda row: size(row.bytes), lambda row: row.bytes),
    ("first call", lambda row: seconds(row.first_call), lambda row: row.first_call),
    ("latency, one core", lambda row: seconds(row.latency), lambda row: row.latency),
    ("peak memory", lambda row: size(row.memory), lambda row: row.memory),
)


def draw(report: BenchmarkReport) -> str:
    """Return an SVG with a panel of bars for each quantity."""
    rows = [row for row in report.rows if not row.problem]
    height, children = float(_MARGIN + 24), []
    children.append(_text(_MARGIN, 24, f"{report.path}: {report.signature}", bold=True))
    for title, show, value in _COLUMNS:
        children.append(_text(_MARGIN, height + 20, title, bold=True))
        height += _PANEL
        greatest = max(map(value, rows), default=0.0)
        for row in rows:
            share = value(row) / greatest if greatest and math.isfinite(greatest) else 0.0
            width = max(1.0, share * (_WIDTH - _LABEL - 130))
            children.append(_text(_MARGIN, height + 14, row.runtime))
            children.append(
                element(
                    "rect",
                    x=f"{_LABEL}",
                    y=f"{height:.0f}",
                    width=f"{width:.1f}",
                    height=f"{_BAR - 5}",
                    fill=_COLORS.get(row.runtime, "#777"),
                )
            )
            children.append(_text(_LABEL + width + 8, height + 14, show(row)))
            height += _BAR
        height += 8
    background = element("rect", width="100%", height="100%", fill="#fff")
    return to_markup(
        element(
            "svg",
            element("title", f"Runtimes on {report.path}"),
            background,
            *children,
            viewBox=f"0 0 {_WIDTH} {height + _MARGIN:.0f}",
            role="img",
            xmlns="http://www.w3.org/2000/svg",
        )
    )


def _text(x: float, y: float, text: str, *, bold: bool = False) -> Any:
    return element(
        "text", text, x=f"{x:.1f}", y=f"{y:.1f}", font_family="sans-serif", font_size="13",
        font_weight="bold" if bold else None,
    )  # fmt: skip
