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
