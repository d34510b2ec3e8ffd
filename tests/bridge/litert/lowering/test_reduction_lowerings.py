"""Reductions of every kind, with NaN, infinities and ties."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck


def _values() -> Any:
    values = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
    values[0, 2, 1], values[1, 0, 0], values[2, 1, 2] = np.nan, np.inf, -np.inf
    return values


def test_floats(check: LiteRTCheck) -> None:
    def reduced(values: Any) -> Any:
        return (
            values.sum(),
            values.sum((0, 2)),
            values.max(1),
            values.min((0, 1)),
            values.max(),
            jnp.prod(values, 1),
            jnp.nanmax(values),
            (values > 0).all(0),
            (values > 0).any((1, 2)),
        )

    check(reduced, _values(), relative=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "float16", "bfloat16"])
def test_dtypes(check: LiteRTCheck, dtype: str) -> None:
    values = (np.arange(20).reshape(4, 5) * 777 % 251).astype(jnp.dtype(dtype))

    def reduced(values: Any) -> Any:
        return (
            values.max(0), values.min(1), values.argmax(0), values.argmin(1),
            values.sum(1, dtype=values.dtype), jnp.prod(values[:2] % 3, 0, dtype=values.dtype),
        )  # fmt: skip

    check(reduced, values, relative=1e-2)


def test_the_first_extreme_or_nan(check: LiteRTCheck) -> None:
    def places(values: Any) -> Any:
        flat = values.reshape(-1)
        return (
            values.argmax(1), values.argmin(0), flat.argmax(), flat.argmin(), jnp.nanargmax(flat),
            (values > 0).argmax(1), jnp.full(3, -jnp.inf).argmax(), (values * 0).argmax(2),
        )  # fmt: skip

    check(places, _values())


def test_integers_by_their_bits(check: LiteRTCheck) -> None:
    def reduced(values: Any) -> Any:
        parity = lax.reduce_xor(values > 0, (1,))
        return lax.reduce_or(values, (0,)), lax.reduce_and(values, (1,)), parity

    bounds = np.iinfo(np.int32)
    check(reduced, np.random.default_rng(1).integers(bounds.min, bounds.max, (3, 5), np.int32))


def test_regions_of_another_kind(check: LiteRTCheck) -> None:
    def reduced(values: Any) -> Any:
        zero, one = np.float32(0), np.float32(1)
        odd = lax.reduce(values, zero, lambda a, b: a + b + a * b, (1,))
        pair = lax.reduce(
            (values, values), (zero, one), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0, 1)
        )
        return odd, *pair, lax.reduce(values, values[0, 0], lax.max, (0,))

    check(
        reduced, np.random.default_rng(2).standard_normal((3, 5)).astype(np.float32), relative=1e-5
    )


def test_sums_of_many_and_of_none(check: LiteRTCheck) -> None:
    def sums(values: Any) -> Any:
        none = values[:0]
        return values.sum(), values.reshape(50, 2000).mean(1), none.sum(), none.max(initial=3)

    check(sums, np.full(100_000, 0.1, np.float32), relative=1e-5)


def test_gradients(check: LiteRTCheck) -> None:
    def square(values: Any) -> Any:
        return (values.max(1) ** 2).sum() + (values.prod(0) ** 2).sum() + values.std()

    check(
        jax.grad(square),
        np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32),
        relative=1e-5,
    )
