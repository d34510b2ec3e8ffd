"""Functions that JAX writes as composites, with static and with symbolic shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module import from_exported, retarget
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.modules import open_module, walk

X = np.linspace(0.1, 0.9, 6).astype(np.float32).reshape(2, 3)
FUNCTIONS = {
    "arccos": jnp.arccos,
    "arccosh": lambda x: jnp.arccosh(1 + x),
    "arcsin": jnp.arcsin,
    "arcsinh": jnp.arcsinh,
    "arctanh": jnp.arctanh,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "log_ndtr": jax.scipy.special.log_ndtr,
    "ndtr": jax.scipy.special.ndtr,
    "sinh": jnp.sinh,
    "top_k": lambda x: jax.lax.top_k(x, 2)[0],
    "truncated_normal": lambda x: (
        x + jax.random.truncated_normal(jax.random.key(0), -1, 1, x.shape)
    ),
}


@pytest.mark.parametrize("shapes", [None, "b, _", "b, c"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name, shapes):
    function = FUNCTIONS[name]
    if (name, shapes) == ("top_k", "b, c"):
        shapes = "b, c + 2"  # at least two to choose from
    converted = bridge.convert(function, polymorphic_shapes=shapes)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(x)
    # the same definitions in two builds of XLA
    np.testing.assert_allclose(y, function(X), rtol=1e-5, atol=1e-6)
    expected = jax.grad(lambda x: function(x).sum())(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dims", "kept"), [("2, 3", True), ("b, 3", False)])
def test_static_ones_are_kept(dims, kept):
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(dims), np.float32)
    call = from_exported(jax.export.export(jax.jit(jnp.sinh))(spec))
    written = COMPOSITE in _operations(call)  # JAX 0.9.0 writes none
    assert (COMPOSITE in _operations(retarget(call, "2.21"))) == (kept and written)


def _operations(call):
    with open_module(call.module) as module:
        return {operation.name for operation in walk(module)}
