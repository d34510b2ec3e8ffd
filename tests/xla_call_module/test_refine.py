"""Calls with symbolic dimensions, for one size of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from xla_call_module import from_exported
from xla_call_module.errors import StructureError
from xla_call_module.op import Op
from xla_call_module.refining import refine


@pytest.fixture(scope="module")
def call():
    b, n = jax.export.symbolic_shape("b, n")
    spec = jax.ShapeDtypeStruct
    exported = jax.export.export(
        jax.jit(lambda x, y, unused: jnp.tanh(x @ y).sum(0)), platforms=["cpu", "tpu"]
    )(spec((b, n), jnp.float32), spec((n, 2), jnp.float32), spec((b,), jnp.int8))
    return from_exported(exported)


def test_it_is_static_and_the_same(call):
    static = refine(call, {"b": 3, "n": 4})
    assert (call.symbols, static.symbols) == (("b", "n"), ())
    assert [spec.shape for spec in static.args] == [(3, 4), (4, 2), (3,)]
    x, y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), np.ones((4, 2), np.float32)
    values = [x, y, np.zeros(3, np.int8)]
    operands = [tf.constant(values[index]) for index in static.kept]
    np.testing.assert_allclose(Op(static).run(operands)[0], np.tanh(x @ y).sum(0), rtol=1e-6)


@pytest.mark.parametrize("sizes", [{}, {"b": 3}])
def test_a_variable_without_a_size(call, sizes):
    with pytest.raises(StructureError, match=r"args\[0\] is float32\[b,n\], and not all"):
        refine(call, sizes)
