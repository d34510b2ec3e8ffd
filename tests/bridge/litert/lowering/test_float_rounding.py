"""Floats of 8 bits inside of a model."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

VALUES = np.concatenate([
    [0, np.inf, np.nan, 448, 464, 465, 480, 57344, 61440, 70000, 240, 248, 2e-3, 1e-3, 9e-4, 1e-5],
    np.exp2(np.linspace(-18, 16, 301)),
]).astype(np.float32)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding(check, name, sign):
    def compute(x):
        return x.astype(getattr(jnp, name)).astype(np.float32)

    (got,) = check.run(compute, sign * VALUES)
    np.testing.assert_array_equal(got, compute(jnp.asarray(sign * VALUES)))
