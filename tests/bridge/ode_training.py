"""A step of training through a solution of an ODE, lifted and loaded; it prints `agree`.

It runs in a process of its own, since Equinox is told when it is imported how errors are raised.
"""

from __future__ import annotations

import tempfile

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import bridge

PARAMS = {"w": jnp.array([[0.5, -0.3], [0.2, 0.8]]), "b": jnp.array([0.1, -0.2])}
START = jnp.array([1.0, -0.5])


def solve(params, y):
    """Return the solution at five times."""
    field = diffrax.ODETerm(lambda t, y, p: jnp.tanh(p["w"] @ y + p["b"]) - y * t)
    times = diffrax.SaveAt(ts=jnp.linspace(0, 1, 5))
    solution = diffrax.diffeqsolve(
        field, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, params, saveat=times,
        adjoint=diffrax.DirectAdjoint(), max_steps=16, throw=False,
    )  # fmt: skip
    return solution.ys


def step(function):
    """Return the loss, and the parameters after a step."""

    def loss(params):
        return jnp.mean((function(params, START) - 0.3) ** 2)

    value, gradients = jax.jit(jax.value_and_grad(loss))(PARAMS)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, gradients)


expected = step(solve)
exported = export.export(jax.jit(solve))(PARAMS, START)
with tempfile.TemporaryDirectory() as folder:
    bridge.save(exported, f"{folder}/model", gradient_order=1)
    loaded = bridge.load(f"{folder}/model").default.exported.call
    for function in (bridge.to_jax(exported), loaded):
        for one, other in zip(
            jax.tree.leaves(step(function)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5)
print("agree")
