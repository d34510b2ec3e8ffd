"""The reports of `diff` and `verify` as text for a terminal."""

from __future__ import annotations

import math
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.diff import DiffReport
from bridge.inspecting.wording import printable
from bridge.verifying.verification import VerifyReport


def print_diff(report: DiffReport, console: Console) -> None:
    """Print everything that differs."""
    if report.equal:
        _print("Nothing differs.", console)
    for kind, differences in groupby(report.differences, key=lambda difference: difference.kind):
        _print(kind, console, style="bold")
        for difference in differences:
            _print(f"  {difference}", console)
    if report.weights:
        _print("weights", console, style="bold")
    for weight in report.weights:
        _print(f"  {weight}", console)


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(printable(text), style=style), soft_wrap=True)


def print_verification(report: VerifyReport, console: Console) -> None:
    """Print a table with a line for each signature, kind of input and order."""
    console.print(Text(report.path, style="bold"), soft_wrap=True)
    if report.failure:
        console.print(f"TensorFlow {report.tensorflow} does not run it:")
        console.print(Text(report.failure), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("signature", "inputs", "order", "greatest error", ""):
        table.add_column(heading, justify="right" if heading == "order" else "left")
    for row in report.rows:
        error = f"{row.error:.1e}" if math.isfinite(row.error) else "-"
        note = Text("differs", style="red") if row.problem else Text(row.known and "known")
        table.add_row(Text(row.signature), Text(row.inputs), str(row.order), error, note)
    console.print(table)
    wrong = [row for row in report.rows if row.problem]
    for problem in dict.fromkeys(row.problem for row in wrong):
        console.print()
        for row in wrong:
            if row.problem == problem:
                console.print(Text(f"{row.signature}, {row.inputs}, order {row.order}:"))
        console.print(Text(problem), soft_wrap=True)
    for known in dict.fromkeys(row.known for row in report.rows if row.known):
        console.print()
        console.print(Text(f"Known differences of {report.runtime}: {known}"))
    console.print()
    outcome = f"{len(wrong)} differ" if wrong else "all as in JAX"
    if any(row.known for row in report.rows):
        outcome += ", but for known differences"
    console.print(f"{len(report.rows)} comparisons with {report.runtime}: {outcome}")
