"""What has no bits that are arithmetic of integers is refused."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.random_bits import RANDOM_BITS_AS_INTEGERS
from tests.bridge.core_ops.decompositions.decomposing import decomposed
from xla_call_module.errors import UnsupportedError


def test_what_has_no_bits_is_refused():
    by = RANDOM_BITS_AS_INTEGERS
    with pytest.raises(UnsupportedError, match=r"rng at .*test_random_bits.py:\d+.*threefry2x32"):
        decomposed(lambda x: lax.rng_uniform(x, x + 1, (2,)), [np.float32(0)], by)
    function = lambda state: lax.rng_bit_generator(state, (0,), np.uint32)  # noqa: E731
    with pytest.raises(UnsupportedError, match="no static shape"):
        decomposed(function, [np.array([1, 2, 3, 4], np.uint32)], by)
