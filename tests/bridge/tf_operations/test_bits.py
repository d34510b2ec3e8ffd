"""Operations on bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges, pairs
from tests.bridge.tf_operations.checking import check
from tests.x64 import enable_x64


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
