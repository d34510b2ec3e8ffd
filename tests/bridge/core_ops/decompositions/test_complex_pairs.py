"""Complex numbers as pairs: what goes in and out, what stays, and what has no such form."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from tests.bridge.core_ops.decompositions.decomposing import check, decomposed
from xla_call_module.errors import UnsupportedError

PAIRS = [COMPLEX_AS_PAIRS]
REAL, IMAG = np.meshgrid([0.5, -1.2, 3, 0, 2e-3, -4, 1e-9], [1.5, 0.3, 0, -2, 1e-4, 3])
Z = (REAL + 1j * IMAG).astype(np.complex64)
X = REAL.astype(np.float32)


def test_what_stays_is_as_it_was():
    """Operations on real numbers beside complex ones, those that JAX has composites of included."""
    made = check(
        lambda z, x: (z * 2, lax.asin(x / 9), lax.top_k(x, 2), jnp.take(x, jnp.arange(2), axis=1)),
        Z, X, by=PAIRS,
    )  # fmt: skip
    names = (b"chlo.top_k", b"mhlo.topk")  # the second one before JAX 0.10
    assert any(name in made.call.module for name in names)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("reduce", lambda z: lax.reduce(z, np.complex64(0), lambda a, b: a * b + 1, [0])),
        ("scatter", lambda z: z.at[jnp.array([0, 0])].multiply(2j)),
    ],
)
def test_what_is_no_operation_on_parts_is_refused(name, function):
    place = rf"{name} at .*test_complex_pairs.py:\d+.*imaginary"
    with pytest.raises(UnsupportedError, match=place):
        decomposed(function, [Z], COMPLEX_AS_PAIRS)
