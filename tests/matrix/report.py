"""The grid as a table on a page of the documentation, between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.matrix.grid import Cell, Outcome
from tests.matrix.written import DEFAULT, release_of

BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


def table(cells: Sequence[Cell], families: Mapping[str, Sequence[str]]) -> str:
    """A row for each family, a column for each TensorFlow, and each cell that did not pass.

    A line for each other JAX that the tests ran with ends it.

    Args:
        cells: of files that one JAX wrote, and of tests.
        families: the names of the cases in each.
    """
    files = [cell for cell in cells if cell.target]
    releases = sorted({cell.tensorflow for cell in files}, key=release_of)
    rows = [["Functions", "", *releases], ["---", "--:", *("--:" for _ in releases)]]
    for family, names in families.items():
        own = [cell for cell in files if cell.case in names and cell.target == cell.tensorflow]
        if own:
            rows.append(_row(family, own, releases))
    for target in sorted({cell.target for cell in files} - {DEFAULT}, key=release_of)[:1]:
        one = [cell for cell in files if cell.target == target]
        rows.append(_row(f"one file, for {target}", one, releases))
    rows.append(
        _row("one file, by default", [cell for cell in files if cell.target == DEFAULT], releases)
    )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    suites = [cell for cell in cells if cell.case == "tests"]
    return "\n".join([*lines, "", *_exceptions(files), *map(_suite, suites)]).strip()


def _row(what: str, cells: Sequence[Cell], releases: Sequence[str]) -> list[str]:
    count = len({cell.case for cell in cells})
    return [what, str(count), *(_entry(cells, release) for release in releases)]


def _entry(cells: Sequence[Cell], release: str) -> str:
    mine = [cell for cell in cells if cell.tensorflow == release]
    counts = [
        (sum(c.outcome is outcome for c in mine), outcome.name.lower()) for outcome in Outcome
    ]
    return ", ".join(
        str(count) if name == "passed" else f"{count} {name}" for count, name in counts if count
    )


def _exceptions(cells: Sequence[Cell]) -> list[str]:
    """A line for each case that did not pass: what became of it, and where."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.outcome is not Outcome.PASSED and cell.target == cell.tensorflow:
            where = found.setdefault((cell.outcome.name.lower(), cell.case), [])
            where.append(cell.tensorflow)
    return [
        f"- {outcome} for {', '.join(where)}: `{case}`" for (outcome, case), where in found.items()
    ]


def _suite(cell: Cell) -> str:
    became = cell.message if cell.outcome is Outcome.PASSED else cell.outcome.name.lower()
    return f"- the tests with JAX {cell.jax} and TensorFlow {cell.tensorflow}: {became}"


def write_table(path: Path, text: str) -> None:
    """Put a table between the markers of a file.

    Raises:
        ValueError: the file lacks them.
    """
    write_between(path, text, BEGIN, END)


def write_between(path: Path, text: str, begin: str, end: str) -> None:
    """Put a text between two markers of a file.

    Raises:
        ValueError: the file lacks them.
    """
    before, first, rest = path.read_text().partition(begin)
    _, second, after = rest.partition(end)
    if not first or not second:
        raise ValueError(f"{path} has no {begin} … {end}; expected both, around the table.")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
