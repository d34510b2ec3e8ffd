"""The page of coverage is that of its record, and the record that of the functions."""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.matrix import coverage, coverage_cells
from tests.matrix.files import write_case
from tests.matrix.functions import CASES
from tests.matrix.written import DEFAULT

WORDS = {"right", "refused", "wrong", "–"}


@pytest.fixture(scope="module")
def record():
    return coverage.read_record()


def test_what_is_recorded_is_of_the_functions_and_columns_that_there_are(record):
    """The page says of others that they are not measured, which `coverage NAME` does."""
    names = [case.name for case in CASES]
    assert list(record["cells"]) == [name for name in names if name in record["cells"]]
    assert tuple(coverage_cells.COLUMNS) == coverage.COLUMNS
    assert all(cells.keys() == {*coverage.COLUMNS} for cells in record["cells"].values())
    assert {word for cells in record["cells"].values() for word in cells.values()} <= WORDS


def test_what_is_not_right_has_a_reason(record):
    expected = {
        (name, column)
        for name, cells in record["cells"].items()
        for column, word in cells.items()
        if word in ("refused", "wrong")
    }
    found = {(name, column) for name, why in record["reasons"].items() for column in why}
    assert found == expected
    assert not [why for whys in record["reasons"].values() for why in whys.values() if not why]


def test_only_the_converter_of_tensorflow_computes_something_else(record):
    """A wrong result in another column is an error of this project, to be mended or refused."""
    wrong = {
        (name, column)
        for name, cells in record["cells"].items()
        for column, word in cells.items()
        if word == "wrong"
    }
    assert {column for _, column in wrong} <= {"TFLite"}


def test_the_page_is_that_of_the_record(record):
    """`python -m tests.matrix.coverage --page` writes it."""
    _, _, rest = coverage.PAGE.read_text().partition(coverage.BEGIN)
    shown, end, _ = rest.partition(coverage.END)
    assert end
    assert shown.strip() == coverage.table(record, coverage.names_of_families())


@pytest.mark.filterwarnings("ignore")  # TensorFlow's of its own converter and interpreter
@pytest.mark.parametrize("name", ["sin", "angle"])
def test_a_function_is_as_it_is_recorded(name, record, tmp_path):
    if importlib.metadata.version("jax") != record["versions"]["jax"]:
        pytest.skip("the record is of another JAX")
    (case,) = (case for case in CASES if case.name == name)
    write_case(case, tmp_path / name, [DEFAULT])
    found = {
        column: coverage_cells.measure(case, tmp_path / name, column)[0]
        for column in coverage.COLUMNS
    }
    words = {"passed": "right", "refused": "refused", "failed": "wrong", "absent": "–"}
    assert {column: words[outcome] for column, outcome in found.items()} == record["cells"][name]
