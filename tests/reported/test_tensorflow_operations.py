"""Files of plain operations computed something else in TensorFlow, without XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tests.operations.targets import opened
from tests.reported.programs import check, of

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
EVEN = np.arange(8, dtype=np.float32).reshape(4, 2)
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 3])
COMPLEX = np.complex64([complex(np.inf, 1), complex(-np.inf, np.inf), 3 + 4j, 0])
EXACT = {"ulps": 0.25}


def _normalize(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)


def _bits(x):
    return lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(x, jnp.uint32)


def _small_bits(x):
    small = x.astype(jnp.float8_e5m2)
    return lax.bitcast_convert_type(small, jnp.uint8)


def _divided(x):
    return (x.astype(jnp.bfloat16) / ml_dtypes.bfloat16(3e38)).astype(jnp.float32)


def _wide(x, y):
    return lax.dot(x, y, preferred_element_type=jnp.int32)


def _preset(x):
    return lax.dot(x, x.T, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)


def _convolve(x, kernel):
    return lax.conv(x, kernel, (1, 1), "SAME")


def _unread(x, unread):
    return x + jax.random.uniform(jax.random.key(0, impl="rbg"), (4,))


def _of_constants(x):
    return x + lax.fori_loop(0, 3, lambda i, c: c * 2, jnp.ones(4))


YEAR_2026 = {
    "NaN through softmax": of(jax.nn.softmax, SPECIAL),
    "softmax of halves": of(jax.nn.softmax, X.astype(np.float16)),
    "erf at infinity": of(lax.erf, SPECIAL),
    "a rounded -0": of(jnp.round, np.float32([-0.2, -0.5, 0.5, 1.5, 2.5]), zeros=True),
    "signs of complex infinities": of(jnp.sign, COMPLEX),
    "powers of complex infinities": of(lambda z: (z**2, z**3), COMPLEX[2:]),
    "quotients by a constant": of(lambda x: x / 3, X, **EXACT),
    "bfloat16 by a constant without a reciprocal": of(_divided, np.float32([1, 30, 3e38])),
    "sums in another order": of(lambda x: 1e8 + (-1e8 + x), X, **EXACT),
    "products in another order": of(lambda x: 1e30 * (1e30 * x), np.float32([1e-38, 1e-30])),
    "differences of equals": of(lambda x: x - x, SPECIAL),
    "a product with zero": of(lambda x: x * 0, SPECIAL, zeros=True),
    "a loop of constants that ended the process": of(_of_constants, X[0]),
    "sums of halves": of(lambda x: x.sum(), np.full(4096, 0.1, np.float16)),
    "a batch norm with a large mean": of(_normalize, EVEN + 1e4),
    "products of int8 in int32": of(_wide, np.full((3, 5), 127, "i1"), np.full((5, 2), 127, "i1")),
    "products of floats as int32": of(_wide, X + 0.3, X.T + 0.3),
    "arrays of nine dimensions": of(lambda x: x.T + 1, X.reshape(1, 3, 1, 2, 1, 1, 2, 1, 1)),
    "bits of floats of 8 bits": of(_small_bits, np.float32([1, -2, np.inf, 0])),
    "convolutions of integers": of(
        _convolve, np.arange(32, dtype="i4").reshape(1, 2, 4, 4), np.ones((3, 2, 3, 3), "i4")
    ),
    "products by a preset algorithm": of(_preset, X, ulps=64),
    "gradients of medians": of(jax.grad(lambda x: jnp.median(x)), X[0]),
    "arguments that nobody reads beside random bits": of(_unread, X[0], X),
    "bits of one array as two dtypes": of(_bits, X),
    "maxima of NaN": of(lambda x: (jnp.maximum(x, 1), x.max(), x.argmax()), SPECIAL),
    "quotients of integers by zero": of(lax.div, np.int32([7, -(2**31)]), np.int32([0, -1])),
    "shifts by more than all bits": of(lambda x: (x << 40, x >> 40), np.int32([1, -5])),
    "places out of bounds": of(
        lambda x, i: (x[i], x.at[i].add(1, mode="drop")), X[0], np.int32([0, 9, -9])
    ),
    "a batch of another size": of(lambda x: x.mean(0) + x.shape[0], X, sizes=("b, 4",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def target():
    with opened("TensorFlow operations") as target:
        yield target


@pytest.mark.parametrize("name", YEAR_2026)
def test_it_computes_what_jax_does(target, name):
    check(target, YEAR_2026[name])
