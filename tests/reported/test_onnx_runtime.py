"""Models of these functions computed something else in ONNX Runtime, or were no models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.operations.targets import OnnxRuntime
from tests.reported.programs import check, of

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
LARGE = np.int64([2**40 + 1, 2**40, -(2**33), 0])
EVEN = np.arange(8, dtype=np.float32).reshape(4, 2)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 3])


def _pool(x):
    return lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")


def _convolve(x, kernel):
    return lax.conv(x, kernel, (1, 1), "SAME")


def _normalize(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)


def _bits(x):
    return lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(x, jnp.uint32)


def _written(x):
    return lax.fori_loop(0, 3, lambda i, c: c.at[i + 1].set(c[i] * 2), x)


def _clipped(x):
    return jax.grad(lambda x: jnp.clip(x, -1, 1).astype(jnp.float32).sum())(x)


def _small(x):
    return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)


YEAR_2026 = {
    "extremes of 64-bit integers": of(lambda x: (x.max(), x.argmax(), x.min()), LARGE),
    "signs of 64-bit integers": of(jnp.sign, LARGE),
    "order of 64-bit integers": of(lambda x: (jnp.sort(x), jnp.maximum(x, x[0] - 1)), LARGE),
    "quotients of integers by zero": of(lax.div, np.int32([7, -(2**31)]), np.int32([0, -1])),
    "log1p and expm1 of -0": of(lambda x: (jnp.log1p(x), jnp.expm1(x)), SPECIAL, zeros=True),
    "a binomial of p=0 without an end": of(
        lambda p: jax.random.binomial(jax.random.key(0), 9.0, p), np.float32([0, 0.5])
    ),
    "quotients of 1 that are multiplied": of(
        lambda x, y: 1 / x * y, np.float32([0, 49, 7]), np.float32([0, 49, 7]), ulps=0.5
    ),
    "sums over no elements": of(lambda x: (x.sum(1), x.prod(1)), np.zeros((2, 0), "f")),
    "a size of 0 in a shape": of(lambda x: x.reshape(0, 3), np.zeros((3, 0), "f")),
    "a transposed matrix and a vector": of(lambda a, b: a.T @ b, X, X[:, 0]),
    "gradients of clip in float16": of(_clipped, np.float16([-1, 1, 1.001, 0, -2])),
    "overflow of float8": of(_small, np.float32([1e6, -1e6, 448, 464, 465, np.inf])),
    "windows without elements": of(_pool, np.zeros((0, 4), "f")),
    "convolutions of no features": of(
        _convolve, np.zeros((1, 0, 4, 4), "f"), np.zeros((2, 0, 3, 3), "f")
    ),
    "max pools behind a Relu with NaN": of(_pool, SPECIAL[None]),
    "a batch norm with a large mean": of(_normalize, EVEN + 1e4),
    "softmax of halves": of(jax.nn.softmax, X.astype(np.float16)),
    "softmax of infinities": of(jax.nn.softmax, SPECIAL[[1, 2, 5]]),
    "products of float64 and numbers": of(lambda a: a @ a.T * 0.1 + 1 / 3, X.astype(np.float64)),
    "bits of one array as two dtypes": of(_bits, X),
    "an array that is read while it is written": of(_written, X[0]),
    "a size as a narrow integer": of(
        lambda x: x + jnp.asarray(x.shape[0], jnp.int8), X, sizes=("b, 4",)
    ),
    "paddings that depend on a size": of(
        lambda x: jnp.pad(x, ((0, x.shape[0] - 1), (0, 0))), X, sizes=("b, 4",)
    ),
    "a scan over a symbolic size": of(
        lambda x: lax.scan(lambda c, row: (c + row, c), x[0], x), X, sizes=("b, 4",)
    ),
    "shifts by more than all bits": of(
        lambda x: (x << 40, lax.shift_right_logical(x, jnp.int32(32))), np.int32([1, -5])
    ),
    "rounding to even, with its sign": of(
        jnp.round, np.float32([0.5, 1.5, 2.5, -0.2, -0.5]), zeros=True
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target():
    return OnnxRuntime()


@pytest.mark.parametrize("name", YEAR_2026)
def test_it_computes_what_jax_does(target, name):
    check(target, YEAR_2026[name])
