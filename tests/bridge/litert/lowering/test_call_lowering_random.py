"""Random numbers: loops of threefry, whose carried values change places, and other generators."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import enable_x64, lax

KEY = np.array([3, 2**31 + 5], np.uint32)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.bool_])
def test_values_that_a_loop_passes_on_to_each_other(check, dtype):
    """The runtime overwrites what a loop carries one value after another."""
    arrays = [
        (np.arange(4) * n > 2).astype(dtype)
        if dtype == np.bool_
        else (np.arange(4) + n).astype(dtype)
        for n in (1, 5, 9)
    ]
    check(lambda *a: lax.fori_loop(0, 4, lambda i, v: (v[1], v[2], v[0]), a), *arrays)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.bits(key, (7,)),
        lambda key: jax.random.normal(key, (5, 2)),
        lambda key: jax.random.randint(key, (6,), -5, 1000),
        lambda key: jax.random.permutation(key, 6),
        lambda key: jax.random.key_data(jax.random.split(key, 3)),
    ],
)
def test_draws(check, draw):
    check(lambda data: draw(jax.random.wrap_key_data(data)), KEY, relative=2e-5)


def generate(shape, dtype, algorithm):
    def draw(words):
        state = lax.bitcast_convert_type(words, np.uint64)
        after, bits = lax.rng_bit_generator(state, shape, dtype, algorithm)
        return [lax.bitcast_convert_type(one, np.uint32) if one.dtype == np.uint64 else one
                for one in (after, bits)]  # fmt: skip

    return draw


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("shape", [(), (4,), (3, 2), (5, 3)])
@pytest.mark.parametrize(
    "algorithm", [lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX]
)
def test_generators(check, shape, dtype, algorithm):
    with enable_x64(True):
        words = np.array([[1, 2**31 + 7], [2**32 - 3, 9]], np.uint32)
        check(generate(shape, dtype, algorithm), words)


def test_counter_of_philox_that_overflows(check):
    with enable_x64(True):
        words = np.array([[2**32 - 1, 2**32 - 1], [2**32 - 2, 2**32 - 1]], np.uint32)
        check(generate((14,), np.uint32, lax.RandomAlgorithm.RNG_DEFAULT), words)


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_draws_of_the_default_generator(check, implementation):
    def draw(data):
        key = jax.random.wrap_key_data(data, impl=implementation)
        return jax.random.normal(key, (5, 2)), jax.random.bits(jax.random.split(key)[1], (3,))

    check(draw, np.array([3, 2**31 + 5, 7, 2**32 - 1], np.uint32), relative=2e-5)
