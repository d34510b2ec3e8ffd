"""Pools and running sums: their nodes, sizes that only a run knows, and what is refused."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, operations
from xla_call_module.errors import UnsupportedError


def test_no_window_along_any_dimension():
    def function(x):
        return lax.reduce_window(
            x, np.float32(0), lax.add, (3, 3), (2, 2), ((1, 2), (-1, -1)), (2, 1), (2, 2)
        )

    check(function, np.ones((1, 2), np.float32))


def test_a_running_sum_is_one_node():
    def function(x):
        return lax.reduce_window(x, np.float32(0), lax.add, (1, 5), (1, 1), ((0, 0), (4, 0)))

    model = check(function, np.ones((2, 5), np.float32))
    assert operations(model) == ["CumSum"]


def test_pools_of_symbolic_sizes():
    def function(x):
        return [
            lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
            lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9,
        ]

    x = np.random.default_rng(0).standard_normal((2, 6, 8, 3), np.float32)
    check(function, x, shapes=["b, 6, 8, 3"], rtol=1e-5, atol=1e-6)
    check(function, x, shapes=["b, h, w, 3"], rtol=1e-5, atol=1e-6)


def test_running_sums_of_small_floats_are_rounded_as_in_jax():
    x = np.random.default_rng(0).normal(0, 3, (8, 9)).astype(np.float16)
    check(lambda x: [lax.cumsum(x, 0), lax.cumsum(x, 1, reverse=True)], x, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_running_sums_of_a_length_that_only_a_run_knows(dtype):
    x = (np.random.default_rng(0).standard_normal((5, 3)) * 3).astype(np.int32).astype(dtype)

    def function(x):
        return jnp.cumsum(x, 0), jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)

    model = check(function, x, shapes=["b, t"])
    assert operations(model).count("CumSum") == 3


@pytest.mark.parametrize("sizes", [(7, 8), (1, 1), (2, 5)])
def test_windows_over_images_of_any_size(sizes):
    x = np.random.default_rng(0).standard_normal((2, *sizes, 2), np.float32)

    def function(x):
        most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        total = lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 1, 3, 1), "SAME")
        return most, total

    check(function, x, shapes=["b, h, w, 2"], atol=1e-5)


def test_windows_of_a_size_that_only_a_run_knows():
    def function(x):
        rows, columns = x.shape
        numbers = lax.broadcasted_iota(np.int32, x.shape, 0)
        return (
            lax.reduce_window(x, -jnp.inf, lax.max, x.shape, (1, 1), "VALID"),
            lax.reduce_window(x, 2.0, lax.add, (rows, 2), (1, 2), "SAME"),
            lax.reduce_window(numbers, 0, lax.min, (rows, 1), (2, 1), "SAME"),
            lax.reduce_window(
                x,
                1.0,
                lax.mul,
                (1, columns),
                (1, 1),
                ((0, 0), (columns, 0)),
                window_dilation=(1, 2),
            ),
        )

    x = np.random.default_rng(0).standard_normal((5, 6), np.float32)
    check(function, x, shapes=["b, c"])


def test_windows_of_an_unknown_size_whose_order_matters():
    with pytest.raises(UnsupportedError, match="the sizes of its windows are dynamic"):
        check(
            lambda x: lax.reduce_window(x, 0.0, lax.sub, x.shape, (1, 1), "VALID"),
            np.ones((4, 2), np.float32),
            shapes=["b, 2"],
        )


def test_running_reductions_over_dimensions_of_any_size():
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    x[2, 0] = np.nan

    def function(x):
        return (
            jnp.cumprod(x, 0),
            lax.cummax(x, 1, reverse=True),
            lax.cumlogsumexp(x, 0),
            lax.cummin(x[:, 0]),
        )

    check(function, x, shapes=["b, t"], rtol=2e-5, atol=1e-6)


def test_windows_whose_order_matters():
    def combine(first, second):
        return first[0] + second[0], first[1] - second[1]

    def function(x, y, padding=((0, 0), (0, 0)), size=(2, 3)):
        starts = (np.float32(1), np.int32(2))
        return lax.reduce_window(
            (x, y), starts, combine, size, (1, 2), padding, window_dilation=(2, 1)
        )

    arrays = np.ones((4, 7), np.float32), np.arange(28, dtype=np.int32).reshape(4, 7)
    check(function, *arrays)
    check(function, *arrays, shapes=["h, w", "h, w"])
    padded = export.export(jax.jit(partial(function, padding="SAME")))(*arrays)
    with pytest.raises(UnsupportedError, match="its padding takes part"):
        bridge.to_onnx(padded)
    large = np.ones((4, 1024), np.float32), np.ones((4, 1024), np.int32)
    many = export.export(jax.jit(partial(function, size=(2, 513))))(*large)
    with pytest.raises(UnsupportedError, match="1026 elements, and their order matters"):
        bridge.to_onnx(many)


_IMAGES = np.random.default_rng(0).standard_normal((2, 16, 9, 10), np.float32)
_IMAGES[0, 1, 3, 3], _IMAGES[1, :, 0, 0], _IMAGES[0, 0, 6, 6] = np.nan, np.nan, np.inf
_IMAGES[1, 3, 5] = -np.inf


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 1, 3, 3), (1, 1, 2, 2), "SAME"),
        ((1, 1, 2, 3), (1, 1, 1, 2), "VALID"),
        ((1, 1, 3, 3), (1, 1, 1, 2), ((0, 0), (0, 0), (1, 2), (2, 0))),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_max_pools_behind_relu(window, strides, padding, layout):
    """With NaNs and infinities, which the runtime's MaxPool alone has wrong."""
    order = ["NCHW".index(name) for name in layout]
    moves = [tuple(numbers[axis] for axis in order) for numbers in (window, strides)]
    around = padding if isinstance(padding, str) else [padding[axis] for axis in order]
    kernel = np.random.default_rng(1).standard_normal((2, 2, 16, 16), np.float32)

    def function(x):
        if layout == "NHWC":
            x = lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, *moves, around)

    model = check(function, _IMAGES.transpose(order), rtol=1e-4, atol=1e-5)
    assert operations(model).count("MaxPool") == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"),
        lambda x: lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        ),
        lambda x: lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
            ((0, 0), (0, 0), (3, 0), (0, 0)),
        ),
        lambda x: lax.reduce_window(
            jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 30, 3), (1, 1, 1, 2), "VALID"
        ),
    ],
)  # fmt: skip
def test_pools_that_are_no_max_pools(function):
    assert "MaxPool" not in operations(check(function, _IMAGES))


@pytest.mark.parametrize(
    ("window", "strides", "padding"), [((2, 2), (2, 2), "VALID"), ((3, 3), (2, 1), "SAME")]
)
def test_gradients(window, strides, padding):
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    def mean(x):
        return lax.reduce_window(x, 0.0, lax.add, window, strides, padding)

    def weights(y):
        rows, columns = (lax.broadcasted_iota(y.dtype, y.shape, axis) for axis in (0, 1))
        return 8 * rows + columns

    def gradient(x):
        pooled, pull = jax.vjp(lambda x: (pool(x), mean(x)), x)
        return pull(jax.tree.map(weights, pooled))

    x = np.random.default_rng(0).integers(0, 5, (6, 8)).astype(np.float32)  # with many equal ones
    check(gradient, x)
    check(gradient, x, shapes=["h, w"])
