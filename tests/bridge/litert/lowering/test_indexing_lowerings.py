"""Gathers, scatters and dynamic slices, with indices beyond all bounds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck

_ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
_INDICES = np.array([1, 0, -1, 2, 5, -9], np.int32)
_UPDATES = np.arange(24, dtype=np.float32).reshape(6, 4) + 0.5
_DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16"]
_COLUMNS = lax.GatherDimensionNumbers((1, 2), (), (0,))


def _gathers(value: Any, indices: Any) -> Any:
    return (
        value[indices],
        jnp.take(value, indices, axis=1),
        jnp.take(value, indices, axis=1, mode="clip"),
        lax.gather(value, indices[:, None], _COLUMNS, (2, 3), mode="clip"),
        jnp.take_along_axis(value, indices[None], 1),
        jax.vmap(lambda row, at: lax.dynamic_slice(row, (at,), (2,)))(value, indices[:3]),
        value[indices, indices],
    )


def test_gathers_within_bounds_and_beyond(check: LiteRTCheck) -> None:
    check(_gathers, _ROWS, _INDICES)


@pytest.mark.parametrize("name", ["add", "max", "min", "multiply", "power", "set", "subtract"])
def test_scatters_combine_in_order_and_drop_what_is_beyond(check: LiteRTCheck, name: str) -> None:
    def scattered(value: Any, indices: Any, updates: Any) -> Any:
        rows = getattr(value.at[indices], name)(updates)
        elements = getattr(value.at[indices, indices], name)(updates[:, 0])
        columns = getattr(value.at[:, indices], name)(updates[:3].T[:3, :1])
        return rows, elements, columns

    check(scattered, _ROWS, _INDICES, _UPDATES)


@pytest.mark.parametrize("name", ["add", "set", "subtract"])
def test_complex_numbers_are_combined(check: LiteRTCheck, name: str) -> None:
    def scattered(value: Any, indices: Any, updates: Any) -> Any:
        return getattr((value * (1 + 2j)).at[indices], name)(updates * 1j)

    check(scattered, _ROWS, _INDICES, _UPDATES)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_dtypes(check: LiteRTCheck, dtype: str) -> None:
    value = (np.arange(12) * 50 % 251).astype(jnp.dtype(dtype))
    updates = (np.arange(6) * 50).astype(jnp.dtype(dtype))

    def moved(value: Any, indices: Any, updates: Any) -> Any:
        at = value.at[indices]
        sums = [] if dtype == "bool" else [at.add(updates)]
        return [value[indices], at.set(updates), at.max(updates), at.min(updates), *sums]

    check(moved, value, _INDICES, updates)


def test_an_extreme_keeps_nan(check: LiteRTCheck) -> None:
    updates = np.array([1, np.nan, 0, 5, 9, np.nan], np.float32)
    value = np.array([np.nan, 1, -np.inf, 7], np.float32)
    check(lambda v, i, u: (v.at[i].max(u), v.at[i].min(u)), value, _INDICES, updates)


def test_windows_that_are_scattered(check: LiteRTCheck) -> None:
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (1,))
    partial = lax.ScatterDimensionNumbers((0,), (0,), (0,))

    def scattered(value: Any, indices: Any) -> Any:
        at = indices[:, None]
        windows = lax.scatter_add(value, at, jnp.ones((6, 3, 2)), numbers, mode="drop")
        parts = lax.scatter_add(value, at, jnp.ones((2, 6)), partial, mode="drop")
        return windows, parts

    check(scattered, _ROWS, _INDICES)


@pytest.mark.parametrize("start", [-5, 1, 9])
def test_slices_are_moved_into_the_array(check: LiteRTCheck, start: int) -> None:
    def sliced(value: Any, update: Any, at: Any) -> Any:
        put = lax.dynamic_update_slice(value, update, (at, 0), allow_negative_indices=False)
        return put, lax.dynamic_slice(value, (at, at), (2, 2), allow_negative_indices=False)

    check(sliced, _ROWS, _ROWS[:2, :2] * 7, np.int32(start))


def test_a_loop_combines_by_a_region_of_its_own(check: LiteRTCheck) -> None:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))

    def scattered(value: Any, indices: Any) -> Any:
        at = indices[:, None]
        return lax.scatter_apply(value, at, jnp.sin, numbers, update_shape=(6,), mode="drop")

    check(scattered, _ROWS[0], _INDICES)


def test_gradients(check: LiteRTCheck) -> None:
    def squares(value: Any, indices: Any, updates: Any) -> Any:
        put = value.at[indices].add(updates) + value.at[indices].set(updates)
        part = lax.dynamic_slice(value, (indices[0], 0), (2, 2))
        return (value[:, indices] ** 2).sum() + (put**2).sum() + (part**2).sum()

    indices = np.array([1, 0, 1, 2, 2, 1], np.int32)
    check(jax.grad(lambda v, i, u: squares(v, i, u), argnums=(0, 2)), _ROWS, indices, _UPDATES)


def test_what_jax_builds_of_them(check: LiteRTCheck) -> None:
    def built(value: Any) -> Any:
        return (
            jnp.bincount(value, length=5),
            jnp.nonzero(value, size=4, fill_value=-1),
            jnp.unique(value, size=4),
            jnp.insert(value, 1, value[0]),
            jax.ops.segment_sum(value, value, 3),
            jnp.roll(value, value[1]),
        )

    check(built, np.array([1, 1, 4, 0, 9], np.int32))
