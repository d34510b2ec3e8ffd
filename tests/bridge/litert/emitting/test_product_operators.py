"""Products with weights, of operands of each rank, and with what follows them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.litert.runtime import describe
from tests.bridge.litert.signatures import run_as_jax

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3), (2, 5, 3), (2, 1, 2, 3), (0, 3)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ WEIGHTS,
        lambda x: jax.nn.relu6((x @ WEIGHTS + 1) * 3 - jnp.arange(4.0)),
        lambda x: (x @ WEIGHTS, jax.nn.relu(x @ WEIGHTS)),
        lambda x: 1 - x @ WEIGHTS,
        lambda x: x @ WEIGHTS * jnp.inf,
    ],
    ids=["alone", "followed", "returned", "subtracted", "infinite"],
)
def test_products_with_weights(litert_process, function, shape):
    x = RANDOM.normal(size=shape).astype(np.float32)
    model = run_as_jax(litert_process, function, x)
    if x.size:
        operators = describe(model, process=litert_process).operators
        assert operators["FULLY_CONNECTED"] == 1
        assert "BATCH_MATMUL" not in operators


def _added_in_a_branch(x):
    y = x @ WEIGHTS
    return jax.lax.cond(x.sum() > 0, lambda: y + jnp.arange(4.0), lambda: jnp.zeros(y.shape))


def _rectified_in_a_loop(x):
    y = x @ WEIGHTS
    step = lambda _, total: total + jax.nn.relu(y)  # noqa: E731
    return jax.lax.fori_loop(0, 3, step, jnp.zeros(y.shape))


@pytest.mark.parametrize("function", [_added_in_a_branch, _rectified_in_a_loop])
def test_what_follows_in_a_body_is_no_part_of_the_product(litert_process, function):
    for sign in (1, -1):
        x = sign * np.abs(RANDOM.normal(size=(2, 3))).astype(np.float32)
        run_as_jax(litert_process, function, x)
