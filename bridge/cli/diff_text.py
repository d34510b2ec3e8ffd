"""A report of `diff` as text for a terminal."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.text import Text

from bridge.diff import DiffReport
from bridge.inspecting.diff_weights import WeightDifference
from bridge.inspecting.report_text import printable

__all__ = ["print_diff"]

_NOTHING = "nothing"


def print_diff(report: DiffReport, console: Console) -> None:
    """Print everything that differs."""
    if report.equal:
        _print("Nothing differs.", console)
    for kind, differences in groupby(report.differences, key=lambda difference: difference.kind):
        _print(kind, console, style="bold")
        for difference in differences:
            first, second = difference.first or _NOTHING, difference.second or _NOTHING
            _print(f"  {difference.where}: {first} -> {second}", console)
    if report.weights:
        _print("weights", console, style="bold")
    for weight in report.weights:
        _print(f"  {weight.name}: {_describe(weight)}", console)


def _describe(weight: WeightDifference) -> str:
    types = f"{weight.first or _NOTHING} -> {weight.second or _NOTHING}"
    if not weight.elements:
        return types
    text = weight.first if weight.first == weight.second else types
    if not weight.different:
        return f"{text}, equal values"
    text += f", {weight.different:,} of {weight.elements:,} elements differ"
    if weight.index is not None:
        where = f" at {list(weight.index)}" if weight.index else ""
        text += f", by at most {weight.greatest:.6g}{where}, relatively {weight.relative:.3g}"
    if weight.unmatched_nans:
        text += f", {weight.unmatched_nans:,} are no number in one only"
    return text


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(printable(text), style=style), soft_wrap=True)
