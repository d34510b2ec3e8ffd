"""Sorts, and the greatest and least elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck

_FLOATS = np.array([3, np.nan, -0.0, 0.0, -np.inf, np.inf, 1, 1, -2], np.float32)
_ROWS = np.random.default_rng(0).integers(0, 9, (2, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_dimension_is_sorted(check: LiteRTCheck, axis: int) -> None:
    check(lambda v: (jnp.sort(v, axis), jnp.argsort(v, axis)), _ROWS)


def test_floats_have_the_order_of_xla(check: LiteRTCheck) -> None:
    def sorted_(values: Any) -> Any:
        down = jnp.sort(values, descending=True), jnp.argsort(values, descending=True)
        return jnp.sort(values), jnp.argsort(values), *down, *lax.top_k(values, 3)

    check(sorted_, _FLOATS)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32", "bfloat16"])
def test_dtypes(check: LiteRTCheck, dtype: str) -> None:
    values = np.array([3, 2**31, 2**31 - 1, 0, 2**32 - 5, 200, 7], np.int64)
    given = (values % 2 if dtype == "bool" else values).astype(jnp.dtype(dtype))

    def sorted_(values: Any) -> Any:
        top = () if dtype == "bool" else lax.top_k(values, 2)
        return jnp.sort(values), jnp.argsort(values), jnp.argsort(values, descending=True), *top

    check(sorted_, given)


def test_several_keys(check: LiteRTCheck) -> None:
    first, second = np.array([1, 0, 1, 0, 1], np.float32), np.array([3, 2, 1, 1, 2], np.float32)

    def sorted_(first: Any, second: Any) -> Any:
        pairs = lax.sort((first, second), num_keys=2), lax.sort((first, second), num_keys=1)
        numbers = lax.complex(first, second)
        return pairs, jnp.lexsort((first, second, first)), jnp.argsort(numbers)

    check(sorted_, first, second)


def test_rows_of_one_element_and_of_none(check: LiteRTCheck) -> None:
    check(
        lambda v: (jnp.sort(v[:, :1], 1), jnp.sort(v[:0]).sum(), lax.top_k(v[:, :1], 1)), _ROWS[0]
    )


def test_approximate_extremes(check: LiteRTCheck) -> None:
    def extremes(values: Any) -> Any:
        least = lax.approx_min_k(values, 2, reduction_dimension=0)
        return *lax.approx_max_k(values, 3), *least

    check(extremes, np.random.default_rng(1).standard_normal((4, 9)).astype(np.float32))


def test_what_jax_builds_of_them(check: LiteRTCheck) -> None:
    def built(values: Any, wanted: Any) -> Any:
        return (
            jnp.median(values),
            jnp.quantile(values, jnp.array([0.1, 0.7])),
            jnp.searchsorted(jnp.sort(values), wanted),
            jnp.searchsorted(jnp.sort(values), wanted, method="sort", side="right"),
            jnp.histogram(values, bins=5),
            jnp.interp(wanted, jnp.sort(values), values),
            jax.scipy.stats.rankdata(values),
            jnp.isin(values, wanted),
        )

    values = np.array([3, 1, 2.5, 7, 1, 4], np.float32)
    check(built, values, np.array([0, 2.5, 9], np.float32), relative=1e-5)


def test_gradients(check: LiteRTCheck) -> None:
    def weighed(values: Any) -> Any:
        return (jnp.sort(values) * jnp.arange(4)).sum() + (lax.top_k(values, 2)[0] ** 2).sum()

    check(jax.grad(weighed), np.array([3, 1, 2, 1], np.float32))
