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
from bridge.core._jax import has_symbolic_composites
from bridge.litert.runtime import Runtime
from bridge.litert.worker.model_execution import describe_model
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


def running(x: Any) -> Any:
    whole = (x * 4).astype(jnp.int32)
    return (
        jnp.cumsum(x, 0), jnp.cumprod(x, 0), lax.cummax(x, 0), lax.cummin(x, 0, reverse=True),
        lax.cumlogsumexp(x, 0), jnp.cumsum(whole, 0), jnp.cumsum(x, 1),
        jax.grad(lambda x: (jnp.cumsum(x, 0) ** 2).sum())(x),
    )  # fmt: skip


def draws(x: Any) -> Any:
    key = jax.random.wrap_key_data(jnp.array([3, 5], jnp.uint32))
    return jax.random.bits(key, x.shape), jax.random.normal(key, (x.shape[0], 2, 3))


def factors(x: Any) -> Any:
    return jnp.linalg.cholesky(x[:, :, None] * x[:, None, :] + 3 * jnp.eye(4))


def elements(x: Any) -> Any:
    """Operations with constants and with what is broadcast, of up to six dimensions."""
    whole, y = (x * 4).astype(jnp.int32), x[:, :, None, None, None, None]
    many = jnp.broadcast_to(y, (*x.shape, 2, 1, 1, 3))
    bias, column = jnp.arange(4.0), x[:, :1]
    return (
        x + bias, bias - x, 2 / x, x * column, x > column, x != 0.5, jnp.maximum(column, x),
        jnp.where(x > 0, x, bias), jnp.where(x[:, :1] > 0, 1.0, x), whole >> 1, whole // 3,
        whole & 3, jnp.clip(x, -0.5, 0.5), jnp.where(many > 0.25, many, -many),
        jnp.isnan(many).sum(), jnp.where(many.sum(5) > 0, 2.0, jnp.exp(many.sum(5))),
        jnp.maximum(many, 0.5), many <= many.max(1, keepdims=True),
    )  # fmt: skip


def attention(x: Any) -> Any:
    heads = jnp.reshape(x[:, :, None] * jnp.arange(12.0), (x.shape[0], 4, 3, 4))
    return jax.nn.dot_product_attention(heads, heads, heads), jax.nn.softmax(x, 0)


def loops(x: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), jnp.zeros(4), x)


_SEVERAL = [
    windows, entries, orders, shapes, running, draws, factors, elements, attention, loops,
]  # fmt: skip


@pytest.mark.parametrize("function", _SEVERAL)
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


def dense(x: Any) -> Any:
    weights = jnp.asarray(np.linspace(-1, 1, 12, dtype=F32).reshape(4, 3))
    return jax.nn.softmax(jax.nn.relu(x @ weights + jnp.arange(3.0)))


def convolution(x: Any) -> Any:
    image = jnp.reshape(x, (x.shape[0], 2, 2, 1))
    names = ("NHWC", "HWIO", "NHWC")
    kernel = jnp.asarray(np.linspace(-1, 1, 8, dtype=F32).reshape(2, 2, 1, 2))
    made = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=names)
    return jnp.clip(made + jnp.array([1.0, 2.0]), 0, 6)


@pytest.mark.parametrize(
    ("function", "operators"),
    [(dense, {"FULLY_CONNECTED": 1, "SOFTMAX": 1}), (jax.nn.relu, {"RELU": 1}),
     (lambda x: jnp.clip(x, 0, 6), {"RELU6": 1}), (lambda x: x * 2 + x[:, :1] > 1, None)],
)  # fmt: skip
def test_kernels_broadcast_to_symbolic_sizes(function, operators):
    if function is dense and not has_symbolic_composites():
        pytest.skip("this JAX lowers no composites of symbolic sizes")
    model = bridge.to_litert(function, args="f32[b,4]")
    found = describe_model(model)["operators"]
    assert found == operators if operators else "BROADCAST_TO" not in found


def test_activations_become_part_of_a_convolution_of_symbolic_sizes():
    found = describe_model(bridge.to_litert(convolution, args="f32[b,4]"))["operators"]
    assert not {"ADD", "BROADCAST_TO", "RELU6"} & found.keys()


def test_slices_of_many_dimensions_of_symbolic_sizes_are_refused():
    (spec,) = export.symbolic_args_specs((jax.ShapeDtypeStruct((2, 4), F32),), "b, 4")
    exported = export.export(
        jax.jit(lambda x: jnp.tile(x[:, :, None, None, None, None], 2)[:, 1:])
    )(spec)
    with pytest.raises(UnsupportedError, match=r"test_dynamic_sizes\.py:\d+.*To do: "):
        bridge.to_litert(exported)
