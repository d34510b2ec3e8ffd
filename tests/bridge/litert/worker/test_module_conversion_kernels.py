"""Composites that become one kernel, at every depth of a model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from bridge.core._jax import has_symbolic_composites
from bridge.litert.runtime import Runtime
from bridge.litert.worker.model_execution import describe_model


def _in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, v: jax.nn.softmax(3 * v), x)


def _in_a_branch(x: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda v: jax.nn.softmax(v), lambda v: -v, x)


def _twice(x: Any) -> Any:
    return jax.nn.softmax(jax.nn.softmax(x) * 5)


@pytest.mark.parametrize("rows", ["4", "b"])
@pytest.mark.parametrize(("function", "count"), [(_in_a_loop, 1), (_in_a_branch, 1), (_twice, 2)])
def test_softmax(function: Any, count: int, rows: str, litert_process: Any) -> None:
    if rows == "b" and not has_symbolic_composites():
        pytest.skip("this JAX lowers no composites of symbolic sizes")
    model = bridge.to_litert(function, args=f"f32[{rows},6]", verify=False)
    operators = describe_model(model)["operators"]
    assert operators["SOFTMAX"] == count
    assert "EXP" not in operators
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    with Runtime(model, process=litert_process) as runtime:
        (got,) = runtime.run({"x": x}).values()
    np.testing.assert_allclose(got, jnp.asarray(function(x)), rtol=2e-6)


def test_softmax_of_known_sizes_beside_unknown_ones(litert_process: Any) -> None:
    """It is one kernel, or, with a JAX that cannot say so there, several operations."""
    model = bridge.to_litert(
        lambda x, y: (x + 1, jax.nn.softmax(y)), args=("f32[b]", "f32[4,6]"), verify=False
    )
    assert ("SOFTMAX" in describe_model(model)["operators"]) == has_symbolic_composites()
    y = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    with Runtime(model, process=litert_process) as runtime:
        _, got = runtime.run({"x": np.ones(3, np.float32), "y": y}).values()
    np.testing.assert_allclose(got, jax.nn.softmax(y), rtol=2e-6)
