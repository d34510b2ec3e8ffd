"""Models of other libraries, lifted from what was exported of them, and trained a step."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge

eqx = pytest.importorskip("equinox")
nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
hk = pytest.importorskip("haiku")
optax = pytest.importorskip("optax")

X = jnp.linspace(-1.0, 1.0, 4 * 8 * 8, dtype=jnp.float32).reshape(4, 8, 8, 1)
LABELS = jnp.array([0, 1, 2, 1])


class _Network(nn.Module):
    """Convolutions, batch normalization and attention."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        x = nn.max_pool(nn.gelu(x), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], 16, 4)
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(num_heads=2)(x))
        return nn.Dense(3)(x.mean(axis=1))


def _linen():
    network = _Network()
    return network.apply, network.init(jax.random.key(0), X)


def _nnx():
    class Recurrent(nnx.Module):
        def __init__(self, rngs):
            self.inner = nnx.Linear(14, 6, rngs=rngs)
            self.head = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            def step(state, row):
                return nnx.relu(self.inner(jnp.concatenate([state, row], -1))), None

            state, _ = lax.scan(step, jnp.zeros((x.shape[0], 6)), jnp.moveaxis(x[..., 0], 1, 0))
            return self.head(state)

    graph, params = nnx.split(Recurrent(nnx.Rngs(0)))
    return lambda params, x: nnx.merge(graph, params)(x), params


def _haiku():
    def forward(x):
        x = hk.Conv2D(4, 3, stride=2)(x)
        x = jax.nn.softplus(hk.LayerNorm(-1, True, True)(x))
        return hk.Linear(3)(hk.Flatten()(x))

    model = hk.without_apply_rng(hk.transform(forward))
    return model.apply, model.init(jax.random.key(0), X)


def _equinox():
    model = eqx.nn.MLP(64, 3, 16, 2, activation=jax.nn.silu, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)

    def apply(params, x):
        return jax.vmap(eqx.combine(params, rest))(x.reshape(x.shape[0], -1))

    return apply, arrays


MODELS = {"Equinox": _equinox, "Haiku": _haiku, "linen": _linen, "nnx": _nnx}


def _step(apply, params, x):
    """Return the loss, and the parameters after a step of Adam."""
    optimizer = optax.adam(1e-2)

    def loss(params):
        logits = apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return value, gradients, optax.apply_updates(params, updates)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training(name):
    apply, params = MODELS[name]()
    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    batch = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8, 8, 1"), jnp.float32)
    exported = export.export(jax.jit(apply))(specs, batch)
    lifted = bridge.to_jax(exported)
    result, expected = (jax.jit(_step, static_argnums=0)(f, params, X) for f in (lifted, apply))
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-6)
    for one, other in zip(jax.tree.leaves(result[1]), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert jax.tree.structure(result[2]) == jax.tree.structure(params)


@pytest.mark.skipif(not find_spec("diffrax"), reason="diffrax asks for JAX 0.10 or newer")
def test_a_step_of_training_through_an_ode(preloaded_python):
    """The gradient of a solution of an ODE is that of its steps, or the one that was saved."""
    code = "import tests.bridge.ode_training"
    # JAX serializes no callbacks, by which Equinox and what is built on it raise errors.
    environment = os.environ | {"EQX_ON_ERROR": "off", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [preloaded_python, "-c", code],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        pytest.fail(ran.stderr[-3000:])
    assert ran.stdout.strip() == "agree"
