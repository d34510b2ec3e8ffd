"""Kernels that write their result over an operand leave what another one reads."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.runtime import Runtime, describe
from tests.bridge.litert.signatures import as_model


def _rows_of_a_sum(x: Any) -> Any:
    total = jnp.cumsum(x) + 5
    return jnp.cumsum(total.reshape(3, 4) + jnp.arange(4, dtype=x.dtype), 1), jnp.cumsum(total)


def _reshaped_twice(x: Any) -> Any:
    rows = jnp.cumsum(x).reshape(3, 4)
    return jnp.cumsum(1 - rows.reshape(4, 3), 0), jnp.cumsum(rows, 0)


def _from_a_row(x: Any) -> Any:
    total = jnp.cumsum(x) + 5
    return jnp.cumsum(jnp.arange(4, dtype=x.dtype) - total.reshape(3, 4), 1), jnp.cumsum(total)


def _updated(x: Any) -> Any:
    total = jnp.cumsum(x) * 5
    rows = lax.dynamic_update_slice(total.reshape(3, 4), x[:4].reshape(2, 2), (1, x[1].astype(int)))
    return jnp.cumsum(rows, 1), jnp.cumsum(total)


def _overwritten_thrice(x: Any) -> Any:
    total = jnp.cumsum(x) - 5
    rows = total.reshape(4, 3) * jnp.arange(3, dtype=x.dtype)
    others = rows.reshape(2, 6) - jnp.arange(6, dtype=x.dtype)
    return jnp.cumsum(others, 1), jnp.cumsum(rows, 0), jnp.cumsum(total)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("kernels", ["delegate", "builtin", "reference"])
def test_nothing_is_overwritten_that_is_read(litert_process, kernels, dtype):
    array = np.arange(12).astype(dtype)
    for function in (_rows_of_a_sum, _from_a_row, _reshaped_twice, _updated, _overwritten_thrice):
        model = as_model(function, array)
        with Runtime(model, process=litert_process, kernels=kernels) as runtime:
            found = runtime.run({"x0": array}).values()
        for got, expected in zip(found, function(array), strict=True):
            np.testing.assert_array_equal(got, expected, str(function))


def test_what_nothing_else_reads_is_not_copied(litert_process):
    def steps(x: Any) -> Any:
        total = jnp.cumsum(x) + 5
        return jnp.cumsum((total.reshape(3, 4) + x[:4]).reshape(-1) * x)

    model = as_model(steps, np.arange(12, dtype=np.float32))
    assert "TILE" not in describe(model, process=litert_process).operators
