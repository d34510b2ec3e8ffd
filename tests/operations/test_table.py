"""The table has a case of every public function, or a reason why not; and each record a cell."""

from __future__ import annotations

import importlib
import inspect
import types
from collections import Counter

import numpy as np
import pytest

from tests.operations import page
from tests.operations.artifacts import Batch
from tests.operations.case import FORMS, LONG, UNKNOWN, public_function
from tests.operations.cells import batches, deviations, is_there, unexpected, without_case
from tests.operations.judging import Outcome, difference
from tests.operations.operands import edges
from tests.operations.table import CASES
from tests.operations.targets import TARGETS

MODULES = (
    "jax.lax", "jax.lax.linalg", "jax.numpy", "jax.numpy.fft", "jax.numpy.linalg", "jax.nn",
    "jax.scipy.linalg", "jax.scipy.special", "jax.random", "jax.image", "jax.ops",
)  # fmt: skip


def _public_functions(module):
    found = (
        public_function(module) if module == "jax.lax.linalg" else importlib.import_module(module)
    )
    for name in dir(found):
        value = getattr(found, name, None)
        is_type = inspect.isclass(value) or isinstance(value, types.ModuleType)
        if callable(value) and not name.startswith("_") and not is_type:
            yield f"{module}.{name}"


@pytest.mark.parametrize("module", MODULES)
def test_each_public_function_has_a_case_or_a_reason(module):
    """A function of another name is the same one where it is the same object."""
    with_case = {id(public_function(subject)) for subject in {case.subject for case in CASES}}
    excused = without_case()
    names = list(_public_functions(module))
    assert names
    assert not [n for n in names if n not in excused and id(public_function(n)) not in with_case]


def test_what_has_no_case_is_public_and_has_none():
    subjects = {case.subject for case in CASES}
    for name in without_case():
        assert name not in subjects
        assert name in _public_functions(name.rpartition(".")[0])


def test_there_is_each_function_that_has_a_case():
    assert not UNKNOWN


def test_names_are_unique():
    assert not [name for name, count in Counter(case.name for case in CASES).items() if count > 1]


def test_what_takes_long_are_cases():
    names = LONG.read_text().splitlines()
    assert names == sorted({case.name for case in CASES if case.long})


@pytest.mark.parametrize("entry", deviations(), ids=lambda entry: entry.cases[0])
def test_each_record_is_of_cells(entry):
    """And each name in it is, so that what is right by now is not left in it."""
    assert entry.outcome in ("refused", "raised", "differs", "absent")
    assert entry.reason
    assert {*entry.targets} <= {*TARGETS}
    assert {*entry.forms} <= {*FORMS}
    names = {case.name for case in CASES}
    for name in entry.cases:
        assert name in names or any(
            entry.is_of(target, case, dtype, form)
            for case in names for target in TARGETS
            for dtype in entry.dtypes or ("float32",) for form in entry.forms or FORMS
        ), name  # fmt: skip


def test_a_cell_is_right_or_recorded():
    (batch,) = batches([case for case in CASES if case.name == "jax.lax.exp"], ["static"], "first")
    assert not unexpected("JAX", batch, Outcome("jax.lax.exp", "right"))
    assert unexpected("JAX", batch, Outcome("jax.lax.exp", "differs", "why")) == "differs: why"
    absent = next(entry for entry in deviations() if entry.outcome == "absent" and entry.forms)
    form = absent.forms[0]
    (case,) = (case for case in CASES if case.name == absent.cases[0])
    assert case.has(form, case.dtypes[0])
    assert not is_there(case, case.dtypes[0], form)
    alone = Batch((case,), form, case.dtypes[0])
    said = unexpected("JAX", alone, Outcome(case.name, "right"))
    assert said.startswith("right, recorded as absent")


def test_another_dtype_may_lack_the_numbers_that_differ():
    """One that a record names has them, as the first dtype has, in the static form."""
    entry = next(e for e in deviations() if e.outcome == "differs" and not e.dtypes and not e.forms)
    (case,) = (case for case in CASES if case.name == entry.cases[0])
    said = [
        unexpected(entry.targets[0], Batch((case,), form, dtype), Outcome(case.name, "right"))
        for dtype in case.dtypes for form in ("static", "symbolic")
    ]  # fmt: skip
    assert "recorded as differs" in said[0]
    assert len(said) > 2
    assert not any(said[1:])


@pytest.mark.parametrize(
    ("found", "each", "is_right"),
    [
        ([1.0, 2.0, np.nan], True, True),
        ([1.0, 2.0000002, np.nan], True, True),
        ([1.001, 2.0, np.nan], True, False),
        ([1.0, 2.0, 3.0], True, False),
        ([1.0, 2.0, np.inf], True, False),
        ([1.0 + 1e-6, 2.0, np.nan], False, True),
    ],
)
def test_differences(found, each, is_right):
    expected = np.array([1.0, 2.0, np.nan], np.float32)
    said = difference(np.float32(found), expected, ulps=4, dtype="float32", each=each)
    assert (not said) == is_right


def test_signs_of_zeros_differ():
    zeros = np.float32([0.0, -0.0])
    assert difference(zeros, -zeros, ulps=4, dtype="float32", each=True).startswith("2 of 2")
    assert not difference(zeros, -zeros, ulps=4, dtype="float32", each=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64", "complex64", "bool"])
def test_edges_are_of_their_dtype(dtype):
    assert edges(dtype).dtype.name == dtype
    assert len(np.unique(edges(dtype))) > (dtype != "bool")


def test_the_page_is_that_of_the_records():
    """`python -m tests.operations.page` writes it."""
    _, _, rest = page.PAGE.read_text().partition(page.BEGIN)
    shown, end, _ = rest.partition(page.END)
    assert end
    subjects = len({case.subject for case in CASES})
    assert shown.strip() == page.section(len(CASES), subjects, deviations())
