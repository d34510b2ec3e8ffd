"""Operations that move elements, for every dtype, some of them of empty arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck

_DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("dtype", _DTYPES)
def test_dtypes(check: LiteRTCheck, dtype: str) -> None:
    def moved(value: Any) -> Any:
        padding = np.ones((), value.dtype)
        return (
            value.T,
            lax.rev(value, (0, 2)),
            value[:, 1:, ::2],
            jnp.concatenate([value, value[:, :0], value], 1),
            jnp.broadcast_to(value[..., None], (2, 3, 4, 2)),
            jnp.roll(value, 1, 2),
            jnp.repeat(value, 2, 1),
            lax.pad(value, padding, ((1, 2, 0), (-1, 0, 1), (2, -1, 2))),
            jnp.eye(3, dtype=value.dtype) if dtype == "bool" else jnp.arange(5, dtype=value.dtype),
        )

    check(moved, np.arange(24).reshape(2, 3, 4).astype(jnp.dtype(dtype)))


def test_empty_arrays(check: LiteRTCheck) -> None:
    def moved(value: Any) -> Any:
        none = value[:0]
        return (
            jnp.concatenate([none, value, none]),
            jnp.pad(none, ((1, 2), (0, 1)), constant_values=3),
            jnp.cumsum(none).sum() + value,
            value[jnp.zeros((0,), int)].sum() + value,
        )

    check(moved, np.arange(12, dtype=np.float32).reshape(3, 4))


def test_padding_by_what_is_computed(check: LiteRTCheck) -> None:
    def padded(value: Any) -> Any:
        return lax.pad(value, value[0, 0], ((1, 2, 1), (0, 2, 0))), jnp.pad(value, 1, mode="wrap")

    check(padded, np.arange(12, dtype=np.float32).reshape(3, 4) + 1)


def test_many_dimensions(check: LiteRTCheck) -> None:
    def moved(value: Any) -> Any:
        return lax.rev(value, (1, 3, 5)), lax.transpose(value, (5, 4, 3, 2, 1, 0))

    check(moved, np.arange(96, dtype=np.float32).reshape(2, 2, 2, 2, 2, 3))


def test_results_without_elements_keep_their_shapes(check):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    check(lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (-2, -3, 1))), x)
    check(lambda x: lax.slice(x, (1, 1), (2, 1)) + 1, x)
    check(lambda x, i: lax.dynamic_slice(x, (i, i), (1, 0)), x, np.int32(1))
