"""`python -m tests.operations.page`: the section of docs/reference/coverage.md on deviations."""

from __future__ import annotations

from collections.abc import Iterable

from tests.matrix.report import write_between
from tests.operations.cells import Deviation
from tests.operations.targets import TARGETS
from tests.policy.source import ROOT

PAGE = ROOT / "docs" / "reference" / "coverage.md"
BEGIN, END = "<!-- deviations -->", "<!-- end of deviations -->"


def section(cases: int, subjects: int, entries: Iterable[Deviation]) -> str:
    """Return the section.

    Args:
        cases: how many cases the table has.
        subjects: of how many functions.
        entries: what is not right.
    """
    lines = [
        f"{cases} cases of {subjects} public functions run on plain numbers, on the edges of their",
        "dtypes, and with NaN and infinities. All is what JAX has, but for this:",
    ]
    lines += ["", "| functions | where | | why |", "|---|---|---|---|"]
    rows: dict[tuple[str, str, str], set[str]] = {}
    for entry in entries:
        if entry.outcome != "absent":
            names = ", ".join(f"`{name}`" for name in _unique(entry.cases) if name != "*") or "all"
            which = ", ".join((*entry.dtypes, *entry.forms))
            word = entry.outcome + (f" ({which})" if which else "")
            rows.setdefault((names, word, entry.reason), set()).update(entry.targets or TARGETS)
    for (names, word, reason), targets in rows.items():
        where = ", ".join(target for target in TARGETS if target in targets)
        lines.append(f"| {names} | {where} | {word} | {reason} |")
    return "\n".join(lines)


def _unique(cases: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(case.partition("(")[0] for case in cases)


def main() -> None:
    """Write the section."""
    from tests.operations.cells import deviations
    from tests.operations.table import CASES

    subjects = len({case.subject for case in CASES})
    write_between(PAGE, section(len(CASES), subjects, deviations()), BEGIN, END)


if __name__ == "__main__":
    main()
