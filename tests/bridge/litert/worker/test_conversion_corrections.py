"""Operations that litert-converter makes others of, unless they are kept apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck

_ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


def _broadcast(value: Any) -> Any:
    return jnp.broadcast_to(value[:, None], (3, 2, 4))


_NUMBERS = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 2, -3], np.float32)


def _multiply_by_zero(value: Any) -> Any:
    return value * 0, jnp.zeros(7) * value, value * 0 + 1


def _raise_to_halves(value: Any) -> Any:
    return value**0.5, value**-0.5, value**2.0, value**-1.0


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a constant less a transposed array": lambda v: (3 - v.T, 3 - (v.T + 0 * v.T)),
    "a constant by a transposed array": lambda v: (3 / v.T, jnp.full((4, 3), 3.0) / v.T),
    "numbers less a transposed array": lambda v: (
        jnp.arange(3) - v.T, jnp.sin(jnp.arange(3.0)) - v.T * 2, 1 - jnp.einsum("ij,kj->ki", v, v),
    ),
    "a transposed broadcast": lambda v: (
        _broadcast(v).transpose(2, 0, 1), (_broadcast(v) * 1).transpose(2, 1, 0),
        1 - _broadcast(v).transpose(2, 0, 1),
    ),
    "a branch": lambda v: lax.cond(v[0, 0] > 0, lambda: 1 - v.T, lambda: 2 / v.T),
    "a loop": lambda v: lax.fori_loop(0, 3, lambda _, y: 1 - y.T * 0.5, v @ v.T),
    "booleans that are compared as integers": lambda v: (v > 3).astype(jnp.int32) > 0,
    "a narrow dtype": lambda v: jnp.broadcast_to(v[:, :, None], (3, 4, 2)).astype(jnp.float16),
}  # fmt: skip


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_operations_stay_what_they_are(check: LiteRTCheck, name: str) -> None:
    check(_FUNCTIONS[name], _ROWS)


@pytest.mark.parametrize("name", ["add", "max", "min", "multiply"])
def test_scatters_keep_operations_that_the_kernel_knows(check: LiteRTCheck, name: str) -> None:
    def scattered(value: Any, indices: Any) -> Any:
        return getattr(value.at[indices], name)(value[:2] + 5)

    check(scattered, _ROWS, np.array([1, 1], np.int32))


@pytest.mark.parametrize("function", [_multiply_by_zero, _raise_to_halves])
def test_numbers_that_are_not_finite(check: LiteRTCheck, function: Callable[[Any], Any]) -> None:
    check(function, _NUMBERS)
