"""Operations on bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges, pairs
from tests.bridge.tf_operations.checking import check


@pytest.fixture(autouse=True)
def _wide():
    with enable_x64(True):
        yield


@pytest.mark.parametrize("name", INTEGERS)
def test_bits_of_integers(name):
    """Shifts by as many bits as there are, by more, and by negative numbers as well."""
    check(
        lambda x, y: [
            lax.shift_left(x, y), lax.shift_right_logical(x, y), lax.shift_right_arithmetic(x, y),
            lax.bitwise_and(x, y), lax.bitwise_or(x, y), lax.bitwise_xor(x, y), lax.bitwise_not(x),
            lax.population_count(x), lax.clz(x), lax.shift_left(x, jnp.asarray(3, x.dtype)),
        ],
        *pairs(name),
    )  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_read_as_integers_and_back(name):
    bits = 8 * jnp.dtype(name).itemsize
    check(lambda x: lax.bitcast_convert_type(x, f"int{bits}"), edges(name))
    check(lambda x: lax.bitcast_convert_type(x, jnp.dtype(name)), edges(f"uint{bits}"))


def test_bits_of_another_size():
    x = np.arange(12, dtype=np.uint32).reshape(3, 4) * 0x01020304
    check(lambda x: lax.bitcast_convert_type(x, "uint8"), x)
    check(lambda x: lax.bitcast_convert_type(x.reshape(3, 2, 2), "float64"), x)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [(5, 10), (8, 7), (4, 3), (5, 2), (8, 23)])
def test_reduced_precision(name, size):
    exponents, fractions = size
    if exponents > 5 and name == "float16":
        return
    numbers = np.ldexp(np.linspace(1, 2, 37), np.arange(-22, 15))
    spread = numbers.astype(jnp.dtype(name))
    x = np.concatenate([edges(name), spread, -spread])
    check(lambda x: lax.reduce_precision(x, exponents, fractions), x)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_all_bits_of_floats_of_8_bits(name):
    """Of NaN float8_e5m2 has three of each sign, which casts make one of."""
    dtype, cast = jnp.dtype(name), lax.bitcast_convert_type
    x = np.arange(256).astype(np.uint8)
    check(lambda x: cast(cast(x, dtype), "uint8"), x)
    check(lambda x: [cast(x, dtype).astype("float32"), cast(x.reshape(-1, 2), "float16")], x)
    numbers = x[(x & 0x7F) <= (0x7F if name == "float8_e4m3fn" else 0x7C)].view(dtype)[:240]
    pairs = numbers.reshape(-1, 2)
    check(lambda y: [cast(y, "uint8"), cast(y, "int8"), cast(cast(y, "uint8"), dtype)], pairs)
    check(lambda y: [cast(y, "uint16"), cast(cast(y, "uint16"), dtype)], pairs)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_are_moved(name):
    x = np.arange(24).reshape(2, 3, 4).astype(jnp.dtype(name))

    def moved(x, i):
        return [
            lax.dynamic_update_slice(x, x[:1, :1, :1], (i, i, i)), x[::-1], jnp.roll(x, 1, 2),
            lax.pad(x, x[0, 0, 1], [(1, 0, 1)] * 3), jnp.take(x, i, 1), x.at[i, i].set(x[0, 0]),
            lax.scan(lambda c, row: (row, c), x[0], x), jnp.where(x > 3, x, x[0, 0, 0]),
            jnp.broadcast_to(x[..., None], (2, 3, 4, 2)), jnp.concatenate([x, x], 1), x.T,
        ]  # fmt: skip

    check(moved, x, np.int32(1))
