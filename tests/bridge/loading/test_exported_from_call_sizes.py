"""Calls whose results have sizes that only the constraints of their scope make sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from bridge.loading.exported_from_call import exported_from_call
from xla_call_module.exported import from_exported

FUNCTIONS = {
    "slice": lambda x: x[4:] * 2,
    "pool": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (5,), (1,), "VALID"),
    "convolution": lambda x: jax.lax.conv(x[None, None], jnp.ones((1, 1, 5)), (2,), "VALID"),
    "broadcast": lambda x: jnp.broadcast_to(x[:1], (x.shape[0] - 4, 3)),
}
(T,) = export.symbolic_shape("t", constraints=["t >= 5"])
SPEC = jax.ShapeDtypeStruct((T,), np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_are_exported_again(name):
    exported = export.export(jax.jit(FUNCTIONS[name]))(SPEC)
    again = exported_from_call(from_exported(exported))
    assert str(again.out_avals[0].shape) == str(exported.out_avals[0].shape)
    x = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(again.call(x)[0], FUNCTIONS[name](x))


def test_litert_models_are_verified_at_sizes_within_the_constraints():
    pytest.importorskip("ai_edge_litert")
    model = bridge.to_litert(FUNCTIONS["slice"], args=(SPEC,))
    assert model[4:8] == b"TFL3"
