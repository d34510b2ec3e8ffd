"""Pools and running sums: their nodes, sizes that only a run knows, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, operations
from xla_call_module.errors import UnsupportedError

_IMAGES = np.random.default_rng(0).standard_normal((2, 16, 9, 10), np.float32)
_IMAGES[0, 1, 3, 3], _IMAGES[1, :, 0, 0], _IMAGES[0, 0, 6, 6] = np.nan, np.nan, np.inf
_IMAGES[1, 3, 5] = -np.inf


def _drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _most(x, *shape):
    return lax.reduce_window(x, -jnp.inf, lax.max, *shape)


def _total(x, *shape):
    return lax.reduce_window(x, 0.0, lax.add, *shape)


def test_a_running_sum_is_one_node():
    model = check(
        lambda x: _total(x, (1, 5), (1, 1), ((0, 0), (4, 0))), np.ones((2, 5), np.float32)
    )
    assert operations(model) == ["CumSum"]


def test_running_sums_of_small_floats_are_rounded_as_in_jax():
    x = np.random.default_rng(0).normal(0, 3, (8, 9)).astype(np.float16)
    check(lambda x: [lax.cumsum(x, 0), lax.cumsum(x, 1, reverse=True)], x, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_running_sums_of_a_length_that_only_a_run_knows(dtype):
    def function(x):
        return jnp.cumsum(x, 0), jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)

    x = (_drawn(5, 3) * 3).astype(np.int32).astype(dtype)
    assert operations(check(function, x, shapes=["b, t"])).count("CumSum") == 3


def test_windows_of_a_size_that_only_a_run_knows_have_no_order():
    with pytest.raises(UnsupportedError, match="the sizes of its windows are dynamic"):
        check(
            lambda x: lax.reduce_window(x, 0.0, lax.sub, x.shape, (1, 1), "VALID"),
            np.ones((4, 2), np.float32), shapes=["b, 2"],
        )  # fmt: skip


def test_windows_whose_order_matters():
    def function(x, y, padding=((0, 0), (0, 0)), size=(2, 3)):
        return lax.reduce_window(
            (x, y), (np.float32(1), np.int32(2)), lambda a, b: (a[0] + b[0], a[1] - b[1]),
            size, (1, 2), padding, window_dilation=(2, 1),
        )  # fmt: skip

    arrays = np.ones((4, 7), np.float32), np.arange(28, dtype=np.int32).reshape(4, 7)
    check(function, *arrays, shapes=["h, w", "h, w"])
    check(lambda x, y: function(x, y, "SAME"), *arrays)
    padded = export.export(jax.jit(lambda x, y: function(x, y, "SAME")))(
        *jax.export.symbolic_args_specs(arrays, "h, w")
    )
    with pytest.raises(UnsupportedError, match="the padding takes no part"):
        bridge.to_onnx(padded)
    large = np.ones((4, 1024), np.float32), np.ones((4, 1024), np.int32)
    many = export.export(jax.jit(lambda x, y: function(x, y, size=(2, 513))))(*large)
    with pytest.raises(UnsupportedError, match="1026 elements, and what order"):
        bridge.to_onnx(many)


def _behind_a_convolution(x):
    kernel = np.ones((2, 2, 10, 10), np.float32)
    y = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return _most(jax.nn.relu(y), (1, 3, 3, 1), (1, 1, 2, 1), ((0, 0), (1, 2), (2, 0), (0, 0)))


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: _most(jax.nn.relu(x), (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), 1),
        (lambda x: _most(jax.nn.relu(x), (1, 1, 2, 3), (1, 1, 1, 2), "VALID"), 1),
        (_behind_a_convolution, 1),
        (lambda x: _most(x, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), 0),
        (lambda x: _most(jax.nn.relu(x), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), 0),
        (lambda x: _most(
            jax.nn.relu(x), (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (3, 0), (0, 0))), 0),
        (lambda x: _most(jax.nn.relu(x), (1, 1, 30, 3), (1, 1, 1, 2), "VALID"), 0),
    ],
)  # fmt: skip
def test_max_pools_are_those_behind_relu(function, count):
    """With NaNs and infinities, which the runtime's MaxPool alone has wrong."""
    model = check(function, _IMAGES, rtol=1e-4, atol=1e-5)
    assert operations(model).count("MaxPool") == count
