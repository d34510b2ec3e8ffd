"""Operands that are broadcast to symbolic sizes by the kernels that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.litert.runtime import Runtime
from bridge.litert.worker.model_execution import describe_model

_COMMON = (
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum, jnp.equal, jnp.not_equal,
    jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal,
)  # fmt: skip
_FUNCTIONS = {"f32": (*_COMMON, jnp.divide), "i32": (*_COMMON, jnp.right_shift)}
_DTYPES = {"f32": np.float32, "i32": np.int32}


def _values(rows: int, dtype: str) -> Any:
    """Return numbers of which some are equal, and which integers are shifted by."""
    return (np.arange(rows * 4).reshape(rows, 4) * 7 % 5 + 1).astype(_DTYPES[dtype])


def _broadcasts(model: bytes) -> int:
    return int(describe_model(model)["operators"].get("BROADCAST_TO", 0))


def _compare(process: Any, model: bytes, function: Callable[..., Any], dtype: str) -> None:
    with Runtime(model, process=process) as runtime:
        for rows in (1, 4, 3):
            x = _values(rows, dtype)
            found = runtime.run({"x": x}).values()
            for got, wanted in zip(found, jax.tree.leaves(function(x)), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", _FUNCTIONS)
def test_each_operation_and_operand(dtype: str, litert_process: Any) -> None:
    row = np.array([1, 4, 2, 3], _DTYPES[dtype])

    def computed(x: Any) -> Any:
        column = x[:, :1]
        pairs = [(x, row), (row, x), (x, column), (column, x), (x, row[:1]), (column, row)]
        made = [function(*pair) for function in _FUNCTIONS[dtype] for pair in pairs]
        chosen = [jnp.where(x > 2, row, column), jnp.where(column > 2, x, row)]
        return [one.astype(x.dtype) for one in made + chosen]

    model = bridge.to_litert(computed, args=f"{dtype}[b,4]", verify=False)
    # Those are left that several operations share; the converter by itself leaves 7 and 10.
    assert _broadcasts(model) <= 5
    _compare(litert_process, model, computed, dtype)


def test_five_dimensions_are_broadcast_before(litert_process: Any) -> None:
    def computed(x: Any) -> Any:
        return x[:, :, None, None, None] + jnp.arange(6.0).reshape(1, 1, 1, 2, 3)

    model = bridge.to_litert(computed, args="f32[b,4]", verify=False)
    assert _broadcasts(model)
    _compare(litert_process, model, computed, "f32")
