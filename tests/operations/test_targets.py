"""The table of cases in each target."""

from __future__ import annotations

import pytest

from tests.operations.case import FORMS
from tests.operations.checking import all_batches, check, name_of, quick_batches
from tests.operations.targets import TARGETS, opened

QUICKEST = "JAX"


@pytest.fixture(scope="module")
def right(request, artifacts):
    """`right(batch)` fails unless the cells of a batch in a target are right, or as recorded."""
    with opened(request.param) as target:
        yield lambda batch: check(target, batch, artifacts)


def _targets(*, slow):
    marks = {name: pytest.mark.slow if slow(name) else () for name in TARGETS}
    return pytest.mark.parametrize(
        "right", [pytest.param(name, marks=mark) for name, mark in marks.items()], indirect=True
    )


@_targets(slow=lambda name: name != QUICKEST)
@pytest.mark.parametrize("batch", quick_batches(), ids=name_of)
def test_each_case_of_one_dtype(right, batch):
    right(batch)


@_targets(slow=lambda _: True)
@pytest.mark.parametrize("batch", all_batches(FORMS), ids=name_of)
def test_each_case_of_all_dtypes_and_forms(right, batch):
    right(batch)
