"""The table of cases in LiteRT models."""

from __future__ import annotations

from tests.operations.checking import all_in, quick_in

TARGET = "LiteRT"


@quick_in(TARGET)
def test_each_case_of_one_dtype(right, batch):
    right(batch)


@all_in(TARGET)
def test_each_case_of_all_dtypes_and_forms(right, batch):
    right(batch)
