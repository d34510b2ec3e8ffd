"""Operations that become one kernel, with NaN and infinities at every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.runtime import Kernels, Runtime
from bridge.litert.worker.model_execution import describe_model
from tests.bridge.litert.checking import LiteRTCheck, assert_same


def _rows(size: int) -> Any:
    """Return rows of random numbers, and rows with NaN or an infinity at each place."""
    rows = np.random.default_rng(0).normal(scale=10, size=(3 * size + 4, size)).astype(np.float32)
    for number, value in enumerate((np.nan, np.inf, -np.inf)):
        rows[number * size + np.arange(size), np.arange(size)] = value
    rows[-2], rows[-1] = -np.inf, 3e38
    return rows


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 17, 33])
def test_softmax_of_all_kernels(check: LiteRTCheck, litert_process: Any, size: int) -> None:
    rows = _rows(size)
    model = check.model(lambda x: [jax.nn.softmax(x)], rows)
    assert describe_model(model)["operators"] == {"SOFTMAX": 1}
    wanted = np.asarray(jax.nn.softmax(rows))
    kernels: list[Kernels] = ["delegate", "builtin", "reference"]
    for one in kernels:
        with Runtime(model, kernels=one, process=litert_process) as runtime:
            (got,) = runtime.run({"x0": rows}).values()
        assert_same(got, wanted, relative=2e-6)


def _by_hand(x: Any) -> Any:
    powers = jnp.exp(x - lax.reduce_max(x, (1,))[:, None])
    return powers / powers.sum(1, keepdims=True)


def _attention(x: Any) -> Any:
    heads = x[:8, :2].reshape(1, 4, 1, 4)
    return jax.nn.dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize("function", [_by_hand, _attention, lambda x: jax.nn.softmax(x[0])])
def test_other_forms_of_softmax(check: LiteRTCheck, function: Callable[..., Any]) -> None:
    check(function, _rows(5)[4:12])
    operators = describe_model(check.model(lambda x: [function(x)], _rows(5)[4:12]))["operators"]
    assert operators["SOFTMAX"] == 1
    assert "EXP" not in operators


def _of_columns(x: Any) -> Any:
    powers = jnp.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(0, keepdims=True)


def _of_square(x: Any) -> Any:
    powers = jnp.exp(x - x.max(1)[None])
    return powers / powers.sum(1)[None]


def _from_one(x: Any) -> Any:
    powers = jnp.exp(x - x.max(1, keepdims=True, initial=100.0))
    return powers / powers.sum(1, keepdims=True, initial=1.0)


@pytest.mark.parametrize("function", [_of_columns, _of_square, _from_one])
def test_quotients_that_are_no_softmax(check: LiteRTCheck, function: Callable[..., Any]) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    check(function, rows)
    assert "SOFTMAX" not in describe_model(check.model(lambda x: [function(x)], rows))["operators"]


@pytest.mark.parametrize(
    ("function", "kernel"),
    [
        (lambda x: jnp.clip(x, 0, 6), "RELU6"),
        (lambda x: lax.clamp(0.0, x, 6.0), "RELU6"),
        (lambda x: jnp.clip(x, 0, jnp.inf), "RELU"),
        (lambda x: jnp.maximum(x, 0), "RELU"),
    ],
)
def test_bounds_that_are_activations(
    check: LiteRTCheck, function: Callable[..., Any], kernel: str
) -> None:
    values = _rows(7)
    check(function, values)
    assert describe_model(check.model(lambda x: [function(x)], values))["operators"] == {kernel: 1}


def test_bounds_that_change_nothing(check: LiteRTCheck) -> None:
    def bounded(x: Any) -> Any:
        return jnp.maximum(x, -jnp.inf) + jnp.minimum(jnp.inf, x), jnp.minimum(x, -jnp.inf)

    check(bounded, _rows(4))
