"""Windows that go over an array: pooling, running sums, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.runtime import describe
from tests.bridge.litert.checking import LiteRTCheck


def _images() -> Any:
    images = np.random.default_rng(0).standard_normal((2, 6, 6, 3)).astype(np.float32)
    images[0, 2, 2, 1] = np.nan
    images[1, 0, 0, 0], images[1, 5, 5, 0] = np.inf, -np.inf
    return images


_MONOIDS: list[tuple[float, Callable[..., Any]]] = [
    (-np.inf, lax.max), (np.inf, lax.min), (0.0, lax.add), (1.0, lax.mul), (2.0, lax.add),
]  # fmt: skip


@pytest.mark.parametrize(("start", "function"), _MONOIDS)
def test_pooling_keeps_nan_and_infinities(
    check: LiteRTCheck, start: float, function: Callable[..., Any]
) -> None:
    def pooled(images: Any) -> Any:
        first = np.float32(start)
        over: Any = partial(lax.reduce_window, images, first, function)
        pads = ((0, 0), (1, 1), (2, -1), (0, 0))
        return (
            over((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
            over((1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
            over((1, 2, 2, 1), (1, 1, 1, 1), "VALID", None, (1, 2, 3, 1)),
            over((1, 2, 2, 1), (1, 1, 1, 1), pads, (1, 2, 2, 1)),
            over((1, 1, 1, 3), (1, 1, 1, 2), "SAME"),
        )

    check(pooled, _images(), relative=1e-5)


_IMAGE_POOLS = [
    ((3, 3), (2, 2), "SAME"),
    ((2, 2), (2, 2), "VALID"),
    ((1, 3), (1, 1), "SAME"),
    ((5, 2), (1, 2), ((0, 0), (1, 3), (0, 1), (0, 0))),
]


@pytest.mark.parametrize(("start", "function"), _MONOIDS[:2])
def test_images_are_pooled_by_the_kernel(
    check: LiteRTCheck, litert_process: Any, start: float, function: Callable[..., Any]
) -> None:
    images = _images()
    images[1, 2:, 2:, 0] = start
    images[0, :, :, 0] = np.finfo(np.float32).min

    def over(images: Any, places: Any) -> Any:
        size, stride, padding = places
        windows = (1, *size, 1), (1, *stride, 1), padding
        return lax.reduce_window(images, np.float32(start), function, *windows)

    def pooled(images: Any) -> Any:
        return [over(images, places) for places in _IMAGE_POOLS]

    operators = describe(check.model(pooled, images), process=litert_process).operators
    assert operators["MAX_POOL_2D"] == 2 * len(_IMAGE_POOLS)
    assert "STRIDED_SLICE" not in operators
    check(pooled, images)
    zeros = np.full((1, 4, 4, 1), -0.0, np.float32)
    assert all(np.signbit(found).all() for found in check.run(pooled, zeros))
    # Strides that are wider than windows, and loops, which XNNPACK runs, too.
    check(lambda images: over(images, ((1, 3), (3, 1), "SAME")), images)
    check(
        lambda images: lax.fori_loop(0, 2, lambda _, x: over(x, ((3, 3), (1, 1), "SAME")), images),
        images,
    )


def test_wide_windows(check: LiteRTCheck) -> None:
    values = np.random.default_rng(1).standard_normal((40,)).astype(np.float32)

    def pooled(values: Any) -> Any:
        over: Any = partial(lax.reduce_window, values, -np.inf, lax.max)
        return over((13,), (1,), "SAME"), over((21,), (3,), "VALID"), over((9,), (2,), "SAME")

    check(pooled, values)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_running_reductions(check: LiteRTCheck, name: str) -> None:
    function = getattr(lax, name)
    images = _images()

    def run(images: Any) -> Any:
        return function(images, 1), function(images, 2, reverse=True)

    def square(images: Any) -> Any:
        return (function(images, 1) ** 2).sum()

    check(run, images, relative=1e-5)
    check(jax.grad(square), np.clip(np.nan_to_num(images), -2, 2), relative=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32", "float16", "bfloat16"])
def test_dtypes(check: LiteRTCheck, dtype: str) -> None:
    values = (np.arange(20).reshape(4, 5) * 77 % 101).astype(jnp.dtype(dtype))

    def pooled(values: Any) -> Any:
        zero = np.zeros((), values.dtype)
        return (
            jnp.cumsum(values, 1, dtype=values.dtype),
            lax.cummax(values, 0),
            lax.reduce_window(values, zero, lax.add, (2, 2), (1, 1), "SAME"),
            lax.reduce_window(values, zero, lax.max, (2, 2), (1, 1), "SAME"),
        )

    check(pooled, values, relative=1e-2)


def test_regions_of_another_kind(check: LiteRTCheck) -> None:
    def greatest(left: Any, right: Any) -> Any:
        return jnp.maximum(jnp.abs(left), jnp.abs(right))

    def both(left: Any, right: Any) -> Any:
        return left[0] + right[0], jnp.maximum(left[1], right[1])

    def pooled(values: Any) -> Any:
        zero = np.float32(0)
        pair = lax.reduce_window((values, values), (zero, zero), both, (2, 2), (1, 1), "SAME")
        return lax.reduce_window(values, zero, greatest, (2, 2), (1, 2), "VALID"), *pair

    check(pooled, np.random.default_rng(2).standard_normal((4, 5)).astype(np.float32))


_POOLS = [
    (-np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    (-np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    (np.inf, lax.min, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    (0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
]


@pytest.mark.parametrize("pool", _POOLS)
def test_gradients_of_pooling(check: LiteRTCheck, pool: Any) -> None:
    start, function, *places = pool

    def square(images: Any) -> Any:
        return (lax.reduce_window(images, np.float32(start), function, *places) ** 2).sum()

    images = np.nan_to_num(_images(), posinf=3, neginf=-3)
    check(jax.grad(square), images, relative=1e-5)
    check(jax.grad(square), np.ones((1, 4, 4, 1), np.float32))
