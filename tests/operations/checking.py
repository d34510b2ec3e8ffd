"""The cells of a target as tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.operations.artifacts import Batch
from tests.operations.case import FORMS
from tests.operations.cells import batches, outcomes_in, unexpected
from tests.operations.table import CASES
from tests.operations.targets import TARGETS, Target


def quick_in(target: str) -> pytest.MarkDecorator:
    """Run a test with the batches of one dtype of each case, in a target."""
    return _in_target(target, quick_batches(), ())


def all_in(target: str) -> pytest.MarkDecorator:
    """Run a test with the other batches of a target, which take long."""
    return _in_target(target, all_batches(FORMS), pytest.mark.slow)


def _in_target(target: str, found: Sequence[Batch], marks: Any) -> pytest.MarkDecorator:
    cells = [
        pytest.param(batch, id=name, marks=marks)
        for name, batch in named(found).items()
        if batch.form in TARGETS[target].forms
    ]
    # Two processes that begin at one batch would both make its artifact.
    first = len(cells) * [*TARGETS].index(target) // len(TARGETS)
    cells = cells[first:] + cells[:first]
    return pytest.mark.parametrize("batch", cells)


@cache
def quick_batches() -> tuple[Batch, ...]:
    """Return the cells of one dtype for each case."""
    return tuple(batches([case for case in CASES if not case.long], ["static"], "first"))


@cache
def all_batches(forms: Sequence[str]) -> tuple[Batch, ...]:
    """Return the other cells of some forms."""
    quick = set(quick_batches())
    short = [case for case in CASES if not case.long]
    long = [case for case in CASES if case.long]
    found = (*batches(short, forms, "all"), *batches(long, forms, "all"))
    return tuple(batch for batch in found if batch not in quick)


def named(found: Sequence[Batch]) -> dict[str, Batch]:
    """Return batches by names for their tests, which more cases leave as they are."""
    counts: Counter[str] = Counter()
    names = {}
    for batch in found:
        first = batch.cases[0]
        kind = "elements" if first.elementwise else "long" if first.long else "arrays"
        name = f"{batch.dtype} {batch.form} {first.name if len(batch.cases) == 1 else kind}"
        counts[name] += 1
        names[f"{name} {counts[name]}"] = batch
    return names


def check(target: Target, batch: Batch, folder: Path) -> None:
    """Fail with each cell that is not right, and not as it is recorded."""
    faults = list(_faults(target, batch, folder))
    assert not faults, "\n".join(faults)


def _faults(target: Target, batch: Batch, folder: Path) -> Iterator[str]:
    for outcome in outcomes_in(target, batch, folder):
        if fault := unexpected(target.name, batch, outcome):
            yield f"{outcome.case}, {batch.dtype}, {batch.form}: {fault}"
