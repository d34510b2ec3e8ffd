"""The table of cases by TensorFlow's own operations, in a session without XLA."""

from __future__ import annotations

import pytest

from tests.operations.case import FORMS
from tests.operations.checking import all_batches, name_of, quick_batches

TARGET = "TensorFlow operations"


@pytest.mark.slow
@pytest.mark.parametrize("batch", quick_batches(), ids=name_of)
def test_each_case_of_one_dtype(batch, right):
    right(batch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", all_batches(FORMS), ids=name_of)
def test_each_case_of_all_dtypes_and_forms(batch, right):
    right(batch)
