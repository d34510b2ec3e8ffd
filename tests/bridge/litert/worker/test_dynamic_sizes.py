"""Functions of arrays of symbolic sizes, in models that are run for several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.litert.runtime import Runtime
from xla_call_module.errors import UnsupportedError

F32 = np.float32
TABLE = np.arange(30, dtype=F32).reshape(10, 3)


def windows(x: Any) -> Any:
    at = jnp.int32(x[0, 0] > 0)
    return (
        x[:, 1:], x[1:], x[:-1], x[-1], x[:, 2], x[:, :1], x[1:, ::-1],
        lax.dynamic_slice_in_dim(x, x.shape[0], 1, 0),
        lax.dynamic_update_slice_in_dim(x, x[:, :2], at, 1), jnp.roll(x, 1, 1),
    )  # fmt: skip


def entries(x: Any) -> Any:
    rows = (jnp.abs(x[:, 0]) * 4).astype(jnp.int32)
    return (
        x[::2], x[::-1], x[:, jnp.array([2, 0])], x[rows % x.shape[0]], x[rows, 1],
        jnp.asarray(TABLE)[rows],
        jnp.take(x, jnp.array([[3, -1], [0, 9]]), axis=1, mode="clip"),
        jnp.take(x, jnp.array([0, 99]), axis=0, mode="fill", fill_value=-7.0),
        jnp.take_along_axis(x, jnp.argmin(x, 1, keepdims=True), 1), x.T[jnp.array([1, 1])],
    )  # fmt: skip


def orders(x: Any) -> Any:
    return (
        jnp.sort(x, 1), jnp.argsort(-x, 1), lax.top_k(x, 2), jnp.sort(x, 0), jnp.argmax(x, 1),
        jnp.argmax(x, 0), jnp.argmin(jnp.where(x > 0, jnp.nan, x), 1), jnp.median(x, 1),
    )  # fmt: skip


def shapes(x: Any) -> Any:
    count = x.shape[0]
    numbers = lax.broadcasted_iota(jnp.int32, (count, 3, 2), 0)
    return (
        numbers, lax.broadcasted_iota(jnp.int32, (2, count), 1), jnp.eye(count), x.T @ x,
        x.reshape(-1), x * count, jnp.concatenate([x, x[:1]]), jnp.zeros((count, 2)), x.mean(0),
        x.at[:, 1].set(3.0), x.at[0].add(1.0), jnp.tril(jnp.ones((count, count))), x,
    )  # fmt: skip


def loops(x: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), jnp.zeros(4), x)


@pytest.mark.parametrize("function", [windows, entries, orders, shapes, loops])
def test_several_sizes(litert_process, function: Callable[..., Any]):
    (spec,) = export.symbolic_args_specs((jax.ShapeDtypeStruct((2, 4), F32),), "b, 4")
    exported = export.export(jax.jit(lambda x: jax.tree.leaves(function(x))))(spec)
    model = bridge.to_litert(exported, verify=False)
    with Runtime(model, process=litert_process) as runtime:
        (signature,) = runtime.contents.signatures
        assert [one.shape for one in signature.inputs] == [(-1, 4)]
        for rows in (2, 5, 3):
            x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(F32)
            found = runtime.run({signature.inputs[0].name: x})
            expected = jax.tree.leaves(function(jnp.asarray(x)))
            for number, (got, wanted) in enumerate(zip(found.values(), expected, strict=True)):
                np.testing.assert_allclose(
                    got, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{number} of {rows} rows"
                )


def test_sizes_that_have_to_be_known_are_refused():
    (spec,) = export.symbolic_args_specs((jax.ShapeDtypeStruct((2, 4), F32),), "b, 4")
    exported = export.export(jax.jit(lambda x: jnp.cumsum(x, 0)))(spec)
    with pytest.raises(UnsupportedError, match=r"test_dynamic_sizes\.py:\d+.*To do: "):
        bridge.to_litert(exported)
