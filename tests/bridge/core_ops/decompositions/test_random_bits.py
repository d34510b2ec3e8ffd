"""The generators of XLA as arithmetic of integers: bit for bit, over shapes, dtypes and counts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.random import threefry2x32_p

from bridge.core_ops.decompositions.random_bits import RANDOM_BITS_AS_INTEGERS, threefry
from tests.bridge.core_ops.decompositions.decomposing import check, decomposed
from xla_call_module.errors import UnsupportedError

BY = [RANDOM_BITS_AS_INTEGERS]
ALGORITHMS = [lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX]
SHAPES = [(), (3, 2), (5, 3)]
# A count that overflows on the way.
STATE = np.array([2**64 - 7, 2**64 - 2], np.uint64)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["threefry", "philox"])
def test_generators(dtype, algorithm):
    def function(state):
        return [lax.rng_bit_generator(state, shape, np.dtype(dtype), algorithm) for shape in SHAPES]

    check(function, STATE, by=BY, wide=True)


def test_states_of_four_words():
    def function(words):
        return lax.rng_bit_generator(words, (7,), np.uint32, lax.RandomAlgorithm.RNG_DEFAULT)

    check(function, np.array([1, 2, 3, 4], np.uint32), by=BY)


def test_threefry():
    words = [jnp.asarray(n, jnp.uint32) for n in (3, 2**31 + 5, 7, 2**32 - 1)]
    made = threefry((words[0], words[1]), words[2], words[3])
    assert [int(word) for word in made] == [int(word) for word in threefry2x32_p.bind(*words)]


def test_random_numbers_without_a_seed_are_refused():
    with pytest.raises(UnsupportedError, match=r"rng at .*test_random_bits.py:\d+.*threefry2x32"):
        decomposed(lambda x: lax.rng_uniform(x, x + 1, (2,)), [np.float32(0)], *BY)


def test_bits_of_dtypes_without_a_generator_are_refused():
    function = lambda state: lax.rng_bit_generator(state, (0,), np.uint32)  # noqa: E731
    with pytest.raises(UnsupportedError, match="no static shape"):
        decomposed(function, [np.array([1, 2, 3, 4], np.uint32)], *BY)
