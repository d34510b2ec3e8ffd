"""Floats rounded to formats of few bits: as ml_dtypes rounds them, ties and edges included."""

from __future__ import annotations

import numpy as np
import pytest
from jax import enable_x64

from bridge.core.narrow_types import NARROW_TYPES, NarrowFloat
from bridge.core_ops.decompositions.narrow_types import round_to

FLOATS = [one for one in NARROW_TYPES.values() if isinstance(one, NarrowFloat)]


def numbers(narrow):
    """All values of a type, those halfway between neighbours, and what is just beside these."""
    values = np.unique(narrow.values[np.isfinite(narrow.values)])
    halves = (values[1:] + values[:-1]) / np.float32(2)
    beside = [np.nextafter(halves, np.float32(sign * np.inf)) for sign in (1, -1)]
    edges = np.float32([2 * narrow.greatest, -2 * narrow.greatest, np.inf, -np.inf, -0.0, np.nan])
    return np.concatenate([values, halves, *beside, edges])


@pytest.mark.parametrize("narrow", FLOATS, ids=lambda one: one.name)
def test_every_value_and_the_numbers_between(narrow):
    with enable_x64(True), np.errstate(all="ignore"):
        exact = numbers(narrow)
        exact = exact if narrow.is_signed else exact[exact >= np.finfo(np.float32).tiny]
        found = np.asarray(round_to(exact, narrow))
        expected = exact.astype(narrow.numpy_dtype).astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    if narrow.has_negative_zero:
        np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(expected[:-1]))
