"""The cells of the table: batches of cases, and what `deviations.toml` says of them."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.operations.artifacts import Batch
from tests.operations.case import Case
from tests.operations.judging import Outcome, outcomes
from tests.operations.targets import Target

DEVIATIONS = Path(__file__).parent / "deviations.toml"
# How many cases are one program.
_SIZES = {"static": 30, "gradient": 15, "second gradient": 10}


@dataclass(frozen=True, slots=True)
class Deviation:
    """Cells that are not right, and why.

    Attributes:
        reason: why.
        outcome: `refused`, `raised` by the runtime, or `differs`; `absent` of what JAX itself has
            not.
        targets: where; everywhere if there are none.
        cases: the names of the cases, in which `*` stands for anything.
        dtypes: of which dtypes; all if there are none.
        forms: in which forms; all if there are none.
        says: a part of what the error says.
        everywhere: whether on each processor; otherwise the cells may be right.
    """

    reason: str
    outcome: str
    cases: tuple[str, ...]
    targets: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    says: str = ""
    everywhere: bool = True

    def is_of(self, target: str, case: str, dtype: str, form: str) -> bool:
        """Return whether it is of a cell."""
        return (
            (not self.targets or target in self.targets)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.forms or form in self.forms)
            and any(_matches(case, pattern) for pattern in self.cases)
        )


def _matches(case: str, pattern: str) -> bool:
    return case == pattern or ("*" in pattern and fnmatchcase(case, pattern.replace("[", "[[]")))


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(DEVIATIONS.read_text())


@functools.cache
def deviations() -> tuple[Deviation, ...]:
    """Return what is recorded."""
    return tuple(
        Deviation(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in _read().get("deviation", ())
    )


def without_case() -> dict[str, str]:
    """Return the public functions without a case, and why."""
    return {
        name: entry["reason"]
        for entry in _read()["without_case"]
        for name in entry["names"].split()
    }


def unexpected(target: str, batch: Batch, outcome: Outcome) -> str:
    """Return what is wrong with an outcome; nothing if it is right, or what is recorded.

    What is recorded is no longer to be where it is right in the quick part, or in a dtype or form
    that the record names; the other dtypes and forms may lack the numbers that show it.
    """
    found = [
        entry for entry in deviations()
        if entry.is_of(target, outcome.case, batch.dtype, batch.form)
    ]  # fmt: skip
    if not found:
        return "" if outcome.word == "right" else f"{outcome.word}: {outcome.reason}"
    if any(entry.outcome == outcome.word and entry.says in outcome.reason for entry in found):
        return ""
    if outcome.word == "right" and not any(
        entry.everywhere and _is_named(entry, batch, outcome.case) for entry in found
    ):
        return ""
    recorded = " or ".join(sorted({entry.outcome for entry in found}))
    return f"{outcome.word}, recorded as {recorded}: {outcome.reason}"


def _is_named(entry: Deviation, batch: Batch, name: str) -> bool:
    first = next(case.dtypes[0] for case in batch.cases if case.name == name)
    return batch.form in (entry.forms or ("static",)) and batch.dtype in (entry.dtypes or (first,))


def batches(
    cases: Sequence[Case], forms: Sequence[str], dtypes: Sequence[str] | str, *, alone: bool = False
) -> Iterator[Batch]:
    """Yield the batches of some cases.

    Args:
        cases: the cases.
        forms: their forms.
        dtypes: some names, `first` for that of each case, or `all`.
        alone: whether each case is a batch.
    """
    for form in forms:
        alike: dict[tuple[str, bool, frozenset[str]], list[Case]] = {}
        for case in cases:
            for dtype in case.dtypes:
                wanted = dtypes == "all" or dtype in dtypes or (
                    dtypes == "first" and dtype == case.dtypes[0])  # fmt: skip
                if not wanted or not is_there(case, dtype, form):
                    continue
                if alone:
                    yield Batch((case,), form, dtype)
                    continue
                refusing = _refusing(case, dtype, form)
                alike.setdefault((dtype, case.elementwise, refusing), []).append(case)
        for (dtype, _, _), those in alike.items():
            size = _SIZES.get(form, 20)
            for start in range(0, len(those), size):
                yield Batch(tuple(those[start : start + size]), form, dtype)


def outcomes_in(target: Target, batch: Batch, folder: Path) -> Iterator[Outcome]:
    """Yield what became of each case of a batch, of which what is refused is asked alone."""
    of_all = (
        entry.says for entry in deviations() if entry.outcome == "refused"
        and entry.cases == ("*",) and entry.is_of(target.name, "", batch.dtype, batch.form)
    )  # fmt: skip
    whole = next(of_all, "")
    refuses = any(target.name in _refusing(case, batch.dtype, batch.form) for case in batch.cases)
    for part in batch.split() if refuses and not whole else [batch]:
        yield from outcomes(target, part, folder, whole)


def is_there(case: Case, dtype: str, form: str) -> bool:
    """Return whether JAX itself has a form of a case of a dtype."""
    return case.has(form, dtype) and not any(
        entry.outcome == "absent" and entry.is_of("", case.name, dtype, form)
        for entry in deviations()
    )


def _refusing(case: Case, dtype: str, form: str) -> frozenset[str]:
    """Return the targets that refuse a case, with which no other one is to suffer there."""
    return frozenset(
        target for entry in deviations() for target in entry.targets
        if entry.outcome in ("refused", "raised") and entry.cases != ("*",)
        and entry.is_of(target, case.name, dtype, form)
    )  # fmt: skip
