"""Loops and branches take from around them what they use, and have it once."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.runtime import describe
from tests.bridge.litert.signatures import run_as_jax

F32 = np.float32
VECTOR = np.array([1.5, -2.0, 3.0], F32)
WEIGHTS = np.random.default_rng(0).normal(size=(64, 64)).astype(F32) / 8


def test_a_loop_has_its_weights_once(litert_process):
    def scanned(x: Any) -> Any:
        return lax.scan(lambda c, row: (jnp.tanh(c @ WEIGHTS + row), c.sum()), x[0], x)

    model = run_as_jax(litert_process, scanned, np.ones((4, 64), F32) / 8)
    assert WEIGHTS.nbytes < len(model) < 1.5 * WEIGHTS.nbytes


def test_constants_are_not_carried(litert_process):
    def carried(x: Any) -> Any:
        step = lambda v: (v[0] + jnp.abs(v[1]).sum(), v[1])  # noqa: E731
        total, weights = lax.while_loop(lambda v: v[0].sum() < 100, step, (x, WEIGHTS))
        return total, weights[0]

    model = run_as_jax(litert_process, carried, VECTOR)
    assert len(model) < 1.5 * WEIGHTS.nbytes
    assert describe(model, process=litert_process).operators["WHILE"] == 1


def _swapped(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, v: (v[1], v[0], v[1], jnp.ones(3)), (x, -x, x, x))


def _seen_by_one(x: Any) -> Any:
    """What the condition reads is another value than what the body reads."""
    most, step = x.max() * 4, x.min()
    return lax.while_loop(lambda v: v < most, lambda v: v - step, x[0])


def _constants(x: Any) -> Any:
    """A branch in a branch that returns a constant."""
    functions = [lambda: (x * 2, x), lambda: (x * 3, -x), lambda: (jnp.ones(3), x + 1)]
    return lax.switch((x[0] > 0).astype(int) + 1, functions)


@pytest.mark.parametrize("kernels", ["delegate", "builtin", "reference"])
@pytest.mark.parametrize("function", [_swapped, _seen_by_one, _constants])
def test_what_is_carried_and_captured(litert_process, function, kernels):
    for array in (VECTOR, -VECTOR):
        run_as_jax(litert_process, function, array, kernels=[kernels])
