"""Operations on constants are computed, as JAX computes them; what is not sure is left."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.blocks.test_block_builder import block_of, names

FLOATS = np.array([-2.5, -1.5, -0.0, 0.5, 1.5, 7.0], np.float32)
INTEGERS = np.array([-7, -2, -1, 0, 3, 2**31 - 1], np.int32)
SAME = {
    "arithmetic": lambda x: x * 2 + x / 3 - x,
    "elementary": lambda x: jnp.exp(jnp.sin(x)) + jnp.sqrt(jnp.abs(x)) + jnp.tanh(x),
    "comparisons": lambda x: (x > 0) & (x <= 2) | (x != x) ^ (x == 7),
    "clamped": lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(2)),
    "rounded": lambda x: jnp.round(x.astype(np.float32)),
    "signs": lambda x: jnp.sign(x),
    "converted": lambda x: jnp.minimum(x, 100).astype(np.int32).astype(np.float32),
    "moved": lambda x: jnp.concatenate([x[::-1], x[1:4:2], x]).reshape(2, 7).T,
    "padded": lambda x: jnp.pad(x, (1, 2), constant_values=3),
    "numbered": lambda x: lax.broadcasted_iota(np.int32, (2, 3), 1),
    "repeated": lambda x: jnp.broadcast_to(x[:, None], (6, 3)),
    "tiled": lambda x: jnp.tile(x, (2, 3)),
    "chosen": lambda x: jnp.where(x > 0, x, -1),
    "reduced": lambda x: (x.max(), x.min(), (x > 0).any(), (x > 0).all()),
    "bits": lambda x: lax.bitcast_convert_type(x, np.int32),
}


@pytest.mark.parametrize("array", [FLOATS, INTEGERS], ids=["float32", "int32"])
@pytest.mark.parametrize("name", SAME)
def test_constants_are_computed_as_by_jax(name, array):
    block = block_of(lambda _: SAME[name](jnp.asarray(array)))
    with jax.disable_jit():
        expected = jax.tree.leaves(SAME[name](jnp.asarray(array)))
    assert names(block) == []
    for got, wanted in zip(block.outputs, expected, strict=True):
        assert got.array.dtype == wanted.dtype
        np.testing.assert_allclose(got.array, wanted, rtol=2e-6)
        np.testing.assert_array_equal(np.signbit(got.array), np.signbit(np.asarray(wanted)))


@pytest.mark.parametrize(
    ("function", "array"),
    [
        pytest.param(lambda x: x.astype(np.int32), np.float32([np.nan, 3e9]), id="no such integer"),
        pytest.param(lambda x: lax.div(x, x), INTEGERS, id="by zero"),
        pytest.param(lambda x: lax.shift_right_arithmetic(x, x), INTEGERS, id="by -1 bits"),
        pytest.param(lambda x: lax.pad(x, x[0], [(-1, 0, 0)]), INTEGERS, id="taken away"),
        pytest.param(lambda x: lax.bitcast_convert_type(x, np.int8), INTEGERS, id="parts"),
        pytest.param(lambda x: lax.erf(x), FLOATS, id="unknown"),
        pytest.param(lambda x: jnp.broadcast_to(x, (1 << 15, 6)), FLOATS, id="great results"),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_left(function, array):
    assert names(block_of(lambda _: function(jnp.asarray(array))))


def test_great_constants_are_moved_and_not_computed():
    great = jnp.asarray(np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32))

    def of(function: Any) -> list[str]:
        return names(block_of(lambda _: function(great)))

    assert of(lambda x: x.T[1:].reshape(-1)) == []
    assert of(lambda x: x + 1) == ["add"]
    assert of(lambda x: jnp.concatenate([x, x])) == ["concatenate"]
