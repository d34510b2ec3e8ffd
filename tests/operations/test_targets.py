"""The table of cases in each target."""

from __future__ import annotations

import pytest

from tests.operations.case import FORMS
from tests.operations.checking import all_batches, check, named, quick_batches
from tests.operations.targets import TARGETS, opened


@pytest.fixture(scope="module")
def right(request, artifacts):
    """`right(batch)` fails unless the cells of a batch in a target are right, or as recorded."""
    with opened(request.param) as target:
        yield lambda batch: check(target, batch, artifacts)


def _in_each_target(batches, marks=()):
    found = [
        pytest.param(target, batch, id=f"{target} {name}", marks=marks)
        for target, kind in TARGETS.items()
        for name, batch in named(batches).items()
        if batch.form in kind.forms
    ]
    return pytest.mark.parametrize(("right", "batch"), found, indirect=["right"])


@_in_each_target(quick_batches())
def test_each_case_of_one_dtype(right, batch):
    right(batch)


@_in_each_target(all_batches(FORMS), pytest.mark.slow)
def test_each_case_of_all_dtypes_and_forms(right, batch):
    right(batch)
