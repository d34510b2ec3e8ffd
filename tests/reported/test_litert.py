"""Models of these functions computed something else in LiteRT, or were no models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.operations.targets import opened
from tests.reported.programs import check, of

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 3])
SIGNED = np.int32([-7, 7, -8, 8]), np.int32([3, -3, 3, -3])
IMAGES = np.linspace(-1, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)


def _pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")


def _dilated(x):
    kernel = np.linspace(-1, 1, 54, dtype=np.float32).reshape(3, 3, 3, 2)
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _branch_in_a_loop(x):
    step = lambda i, c: lax.cond(i % 2 == 0, lambda c: c * 2, lambda c: c - 1, c)  # noqa: E731
    return lax.fori_loop(0, 3, step, x)


def _frames(x):
    return x[: (x.shape[0] - 1) // 2 + 1] + (-(-x.shape[0] // 2))


YEAR_2026 = {
    "pools of NaN": of(_pool, SPECIAL[None]),
    "extremes of NaN": of(lambda x: (x.max(), x.min(), x.argmax(), jnp.maximum(x, 1)), SPECIAL),
    "logical shifts of negative numbers": of(
        lambda x: lax.shift_right_logical(x, jnp.int32(3)), np.int32([-8, 8, -1])
    ),
    "remainders of negative numbers": of(lambda x, y: (lax.rem(x, y), x % y, x // y), *SIGNED),
    "remainders of negative floats": of(
        lambda x, y: (lax.rem(x, y), x % y), np.float32([-7.5, 7.5, -8]), np.float32([3, -3, 3])
    ),
    "dilated convolutions": of(_dilated, IMAGES, ulps=64),
    "branches in loops": of(_branch_in_a_loop, X),
    "comparisons with infinity": of(lambda x: (x < jnp.inf, x >= jnp.inf, x != -jnp.inf), SPECIAL),
    "infinities that follow from constants": of(
        lambda x: jnp.where(x > 0, x, -jnp.inf).max(1), X - 1.5
    ),
    "quotients by zero": of(lambda x: (x / 0, 1 / x), SPECIAL),
    "products of large integers": of(
        lambda x: x @ x, np.int32([[40_001, 3], [-7, 40_001]])
    ),
    "rounding to even": of(jnp.round, np.float32([0.5, 1.5, 2.5, -0.5])),
    "slices of arrays of five dimensions": of(
        lambda x: x[..., ::2] + 1, np.arange(48, dtype="f").reshape(2, 1, 2, 3, 4)
    ),
    "results without elements": of(lambda x: (x[:0], x[:, :0].sum(1)), X),
    "NaN parts of infinite complex numbers": of(
        lambda z: z + 1, np.complex64([complex(np.inf, np.nan), 1j])
    ),
    "complex products": of(lambda z: (z * z, jnp.abs(z)), np.complex64([3 + 4j, -1j])),
    "softmax of infinities": of(jax.nn.softmax, SPECIAL[[1, 2, 5]]),
    "sizes whose quotients pass through their signs": of(_frames, X, sizes=("b, 4",)),
    "whether a size is even": of(
        lambda x: x + (jnp.asarray(x.shape[0]) % 2 == 0), X, sizes=("b, 4",)
    ),
    "running sums over a symbolic size": of(lambda x: jnp.cumsum(x, 0), X, sizes=("b, 4",)),
    "random bits": of(
        lambda data: jax.random.bits(jax.random.wrap_key_data(data), (5,)), np.uint32([1, 2])
    ),
    "sorts of NaN and of both zeros": of(lambda x: jnp.sort(x), SPECIAL),
    "places out of bounds": of(lambda x, i: x[i], X[0], np.int32([0, 9, -9])),
}  # fmt: skip


@pytest.fixture(scope="module")
def target():
    pytest.importorskip("ai_edge_litert")
    with opened("LiteRT") as target:
        yield target


@pytest.mark.parametrize("name", YEAR_2026)
def test_it_computes_what_jax_does(target, name):
    check(target, YEAR_2026[name])
