"""The grid: what became of each cell, what was expected of it, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Console
from rich.text import Text

from tests.matrix.written import DEFAULT, release_of
from xla_call_module import versions


class Outcome(Enum):
    """The outcome of a cell; the value is its letter in the grid."""

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
        message: what is wrong, the refusal, or how many tests passed.
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
    """A file that must be refused, with a message that says why.

    Attributes:
        case: its name.
        first: the oldest TensorFlow that runs it; it is refused for every older one.
        match: a pattern that is found in the message.
        jax: with what the version that wrote the file begins; empty for every one.
        target: what alone it was written for; empty for all.
    """

    case: str
    first: str
    match: str
    jax: str = ""
    target: str = ""

    def is_about(self, cell: Cell) -> bool:
        """Return whether this refusal is expected of a cell."""
        if cell.case != self.case or not cell.target or not cell.jax.startswith(self.jax):
            return False
        if self.target not in ("", cell.target):
            return False
        reader = cell.tensorflow if cell.target == DEFAULT else cell.target
        return release_of(reader) < release_of(self.first)


# What `bridge.save` writes for no release in particular runs in this one and newer ones.
DEFAULT_RELEASE = "2.18"
# The gradient of a sort, and of a selection, of an unknown number of rows scatters by batches.
_BATCHED_SCATTER = r"scatter_v2 at .*2\.18|written for 2\.18"
# JAX 0.12 asks for the highest accuracy in the derivatives of `erf` and in logarithms.
_ACCURATE_EXP = ("erf", "errors", "float64_functions", "gelu_exact", "ndtr", "platforms",
                 "symbolic_gelu")  # fmt: skip
REFUSALS = (
    # TensorFlow 2.18's XLA ends the process on a dot with an explicit algorithm.
    Refusal("dot_algorithm", "2.19", r"oldest TensorFlow that runs it is 2\.19|written for 2\.19"),
    Refusal("symbolic_sort", "2.18", _BATCHED_SCATTER),
    Refusal("symbolic_top_k", "2.18", _BATCHED_SCATTER),
    *(
        Refusal(case, "2.19", r"result_accuracy HIGHEST .* is 2\.19|written for 2\.19", jax="0.12")
        for case in _ACCURATE_EXP
    ),
    Refusal(
        "rel_entr", "2.20", r"result_accuracy HIGHEST .* is 2\.20|written for 2\.20", jax="0.12"
    ),
    # For a release in particular the shardings are those of the partitioner that it has.
    *(
        Refusal(f"{name}_shardy", "2.20", r"written for 2\.20", target=DEFAULT)
        for name in ("sharded", "sharding_constraint")
    ),
)


@dataclass(frozen=True, slots=True)
class Deviation:
    """A file that runs and gives something else, by what that TensorFlow is.

    Attributes:
        case: its name.
        tensorflow: the releases that deviate.
        match: a text in what the cell says.
    """

    case: str
    tensorflow: tuple[str, ...]
    match: str

    def is_about(self, cell: Cell) -> bool:
        """Return whether this is expected of a cell."""
        return cell.case == self.case and cell.tensorflow in self.tensorflow


_RELEASES = {
    known.name: tuple(
        release.name
        for release in versions.RELEASES
        if known.since <= release.tensorflow <= (known.until or versions.NEWEST.tensorflow)
    )
    for known in versions.DEVIATIONS
}
DEVIATIONS = (
    Deviation("float8_inside", _RELEASES["float8_conversion"], "off by 0.5"),
    Deviation("int4_inside", _RELEASES["int4_inside"], "S4/U4 is currently not support"),
)


def problem(cell: Cell, refusals: Sequence[Refusal] = REFUSALS) -> str:
    """Return why a cell makes the run fail; empty if it is as expected."""
    wanted = next((refusal for refusal in refusals if refusal.is_about(cell)), None)
    if wanted is None:
        return "" if _is_expected(cell) else f"{cell.outcome.name}: {cell.message}"
    if cell.outcome is not Outcome.REFUSED:
        return f"{cell.outcome.name}, but a refusal is expected: {cell.message}"
    if re.search(wanted.match, cell.message) is None:
        return f"refused without saying {wanted.match!r}: {cell.message}"
    return ""


def _is_expected(cell: Cell) -> bool:
    if cell.outcome is Outcome.FAILED:
        return any(known.is_about(cell) and known.match in cell.message for known in DEVIATIONS)
    return cell.outcome in (Outcome.PASSED, Outcome.ABSENT) or _is_newer_by_default(cell)


def _is_newer_by_default(cell: Cell) -> bool:
    written_for = re.fullmatch(r"written for ([0-9.]+)", cell.message)
    return (
        cell.outcome is Outcome.REFUSED
        and cell.target == DEFAULT
        and written_for is not None
        and release_of(written_for[1]) <= release_of(DEFAULT_RELEASE)
    )


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
        said = [c.message for c in found if not c.target and c.outcome is Outcome.PASSED]
        console.print(line + Text(f"  {'; '.join(said) or _count(found)}"), soft_wrap=True)
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
