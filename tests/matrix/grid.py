"""The grid: what became of each cell, what was expected of it, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Console
from rich.text import Text

__all__ = ["REFUSALS", "Cell", "Outcome", "Refusal", "exit_status", "problem", "show"]


class Outcome(Enum):
    """What became of a cell; the value is its letter in the grid."""

    PASSED = "."
    REFUSED = "r"
    ABSENT = "-"
    FAILED = "F"
    DIED = "D"


@dataclass(frozen=True, slots=True)
class Cell:
    """One file, or other work, of one JAX in one TensorFlow.

    Attributes:
        jax: the version that wrote the file; empty for an environment.
        target: the TensorFlow that it was written for, or `default`; empty for other work.
        tensorflow: the release that runs it.
        case: of tests/matrix/functions.py, or the name of other work or of an environment.
        outcome: refused where `bridge.save` raised a VersionError or wrote for a newer TensorFlow;
            absent where this machine lacks the interpreter.
        message: what is wrong, or the refusal.
    """

    jax: str
    target: str
    tensorflow: str
    case: str
    outcome: Outcome
    message: str = ""

    @property
    def row(self) -> str:
        """The line of the grid that it is in."""
        if not self.target:
            return f"JAX {self.jax}, {self.case}" if self.jax else self.case
        return f"JAX {self.jax} for {self.target}, in TensorFlow {self.tensorflow}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A cell that must be refused, with a message that says why.

    Attributes:
        tensorflow: the release.
        case: its name.
        match: a pattern that is found in the message.
        jax: with what the version that wrote the file begins; empty for every one.
    """

    tensorflow: str
    case: str
    match: str
    jax: str = ""

    def is_about(self, cell: Cell) -> bool:
        """Whether this refusal is expected of a cell."""
        return (self.tensorflow, self.case) == (cell.tensorflow, cell.case) and cell.jax.startswith(
            self.jax
        )


REFUSALS = (
    # TensorFlow 2.18's XLA ends the process on a dot with an explicit algorithm.
    Refusal("2.18", "dot_algorithm", r"oldest TensorFlow that runs it is 2\.19|written for 2\.19"),
    # JAX 0.8 writes custom calls for these, which only TensorFlow 2.21 has.
    *(
        Refusal("2.18", case, r"mhlo\.\w+ at .*2\.21|written for 2\.21", jax="0.8.")
        for case in ("sinh", "cosh", "arcsin", "arccos", "arcsinh", "arccosh", "arctanh")
    ),
    # From JAX 0.12 on the gradient of erf asks for an accurate exponential (StableHLO 1.9).
    *(
        Refusal("2.18", case, r"vhlo\.exponential_v2 at .*2\.19|written for 2\.19", jax="0.12.")
        for case in ("errors", "erf", "gelu_exact", "ndtr", "platforms")
    ),
)


def problem(cell: Cell, refusals: Sequence[Refusal] = REFUSALS) -> str:
    """Why a cell makes the run fail; empty if it is as expected."""
    wanted = next((refusal for refusal in refusals if refusal.is_about(cell)), None)
    if wanted is None:
        expected = cell.outcome in (Outcome.PASSED, Outcome.ABSENT)
        return "" if expected else f"{cell.outcome.name}: {cell.message}"
    if cell.outcome is not Outcome.REFUSED:
        return f"{cell.outcome.name}, but a refusal is expected: {cell.message}"
    if re.search(wanted.match, cell.message) is None:
        return f"refused without saying {wanted.match!r}: {cell.message}"
    return ""


def exit_status(cells: Sequence[Cell], refusals: Sequence[Refusal] = REFUSALS) -> int:
    """1 where some cell is not as expected, or nothing ran."""
    ran = any(cell.outcome is not Outcome.ABSENT for cell in cells)
    return int(not ran or any(problem(cell, refusals) for cell in cells))


def show(cells: Sequence[Cell], console: Console) -> None:
    """A line of letters for each row, every unexpected cell with its message, and the counts."""
    rows = dict.fromkeys(cell.row for cell in cells)
    for row in rows:
        found = [cell for cell in cells if cell.row == row]
        line = Text(f"{row:{max(map(len, rows))}}  ")
        for cell in found:
            line.append(cell.outcome.value, style="bold red" if problem(cell) else "green")
        console.print(line + Text(f"  {_count(found)}"), soft_wrap=True)
    for cell in cells:
        if message := problem(cell):
            console.print(f"\n{cell.row}, {cell.case}\n{message}", soft_wrap=True, markup=False)
        elif cell.outcome is Outcome.ABSENT:
            console.print(f"{cell.row}: left out, {cell.message}", soft_wrap=True, markup=False)
    failed = sum(bool(problem(cell)) for cell in cells)
    console.print(f"{len(cells) - failed} passed, {failed} failed")


def _count(cells: Sequence[Cell]) -> str:
    counts = ((outcome, sum(cell.outcome is outcome for cell in cells)) for outcome in Outcome)
    return ", ".join(
        f"{outcome.value} {count} {outcome.name.lower()}" for outcome, count in counts if count
    )
