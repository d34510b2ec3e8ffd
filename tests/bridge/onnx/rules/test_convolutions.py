"""Convolutions: their layouts, strides, dilations, groups and gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from tests.bridge.onnx.checking import check, operations

NHWC = ("NHWC", "HWIO", "NHWC")
CASES = {
    "plain": {"padding": "VALID"},
    "same": {"padding": "SAME"},
    "strides": {"padding": "SAME", "window_strides": (2, 3)},
    "uneven": {"padding": [(1, 2), (0, 3)]},
    "cut_off": {"padding": [(-1, 0), (2, -1)]},
    "dilated": {"padding": "SAME", "rhs_dilation": (2, 1)},
    "spread": {"padding": [(1, 1), (2, 1)], "lhs_dilation": (2, 3)},
    "spread_and_strides": {
        "padding": [(1, 1), (2, 1)], "lhs_dilation": (2, 3), "window_strides": (2, 1),
    },
    "spread_and_far": {"padding": [(5, 4), (2, 2)], "lhs_dilation": (2, 2), "rhs_dilation": (1, 2)},
}  # fmt: skip


def _random(shape, dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    if "int" in dtype:
        return random.integers(-50, 50, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _convolve(x, w, window_strides=(1, 1), **options):
    return lax.conv_general_dilated(x, w, window_strides, dimension_numbers=NHWC, **options)


def test_windows():
    x, w = _random((2, 9, 8, 4)), _random((3, 2, 4, 6))
    check(lambda x, w: [_convolve(x, w, **case) for case in CASES.values()], x, w, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups(groups):
    x, w = _random((2, 6, 5, 4)), _random((3, 3, 4 // groups, 8))

    def function(x, w):
        plain = _convolve(x, w, padding="SAME", feature_group_count=groups)
        apart = _convolve(
            x, w, padding=[(2, 2), (1, 2)], lhs_dilation=(2, 2), feature_group_count=groups
        )
        return plain, apart

    check(function, x, w, atol=1e-4)


def test_groups_of_the_batch():
    x, w = _random((4, 6, 5, 3)), _random((3, 3, 3, 8))
    check(lambda x, w: _convolve(x, w, padding="SAME", batch_group_count=2), x, w, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "int64"])
def test_dtypes(dtype):
    x, w = (_random(shape, dtype if dtype != "bfloat16" else "float32").astype(jnp.dtype(dtype))
            for shape in ((2, 6, 5, 4), (3, 2, 2, 6)))  # fmt: skip
    tolerance = {"float16": 2e-2, "bfloat16": 6e-2, "float64": 1e-12}.get(dtype, 0)
    check(
        lambda x, w: _convolve(x, w, (2, 1), padding="SAME", feature_group_count=2),
        x, w, rtol=tolerance, atol=tolerance * 4,
    )  # fmt: skip


@pytest.mark.parametrize("dimensions", [0, 1, 3, 4])
def test_other_dimensions(dimensions):
    x, w = _random((2, 3, *[5] * dimensions)), _random((4, 3, *[2] * dimensions))
    check(
        lambda x, w: lax.conv_general_dilated(x, w, (2,) * dimensions, [(1, 0)] * dimensions),
        x, w, atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"window_strides": (2, 2)}, {"feature_group_count": 4}])
def test_gradients(options):
    x = _random((2, 7, 8, 4))
    w = _random((3, 3, 4 // options.get("feature_group_count", 1), 8))

    def gradient(x, w):
        return jax.grad(
            lambda x, w: (_convolve(x, w, padding="SAME", **options) ** 2).sum(), (0, 1)
        )(x, w)

    check(gradient, x, w, rtol=1e-4, atol=2e-3)


def _pulled_back(x, w, cotangent):
    return jax.vjp(lambda x, w: _convolve(x, w, padding="SAME", rhs_dilation=(1, 2)), x, w)[1](
        cotangent
    )


def test_gradients_of_images_of_any_size():
    """The gradient of a kernel is a convolution by an image."""
    x, w = _random((2, 6, 7, 3)), _random((3, 2, 3, 4))
    shapes = ["b, h, w, 3", "3, 2, 3, 4", "b, h, w, 4"]
    check(_pulled_back, x, w, _random((2, 6, 7, 4)), shapes=shapes, atol=1e-4)


def test_gradients_of_images_of_any_size_in_float64_are_refused():
    x, w = _random((2, 6, 7, 3), "float64"), _random((3, 2, 3, 4), "float64")
    with pytest.raises(bridge.InteropError, match="its kernel has a dynamic number of places"):
        check(
            _pulled_back, x, w, _random((2, 6, 7, 4), "float64"),
            shapes=["b, h, w, 3", None, "b, h, w, 4"],
        )  # fmt: skip


def test_a_reversed_kernel():
    x, w = _random((1, 2, 6)), _random((3, 2, 3))

    def function(x, w):
        return lax.conv_transpose(
            x,
            w.transpose(2, 1, 0),
            (2,),
            "SAME",
            dimension_numbers=("NCH", "HIO", "NCH"),
            transpose_kernel=False,
        )

    check(function, x, w, atol=1e-5)


def test_symbolic_sizes():
    x, w = _random((2, 9, 8, 3)), _random((3, 3, 3, 4))

    def function(x, w):
        return _convolve(x, w, (2, 2), padding=((1, 1), (1, 1))), _convolve(x, w, padding="SAME")

    check(function, x, w, shapes=["b, h, w, 3", None], atol=1e-4)
    check(function, x, w, shapes=["b, 9, 8, 3", None], atol=1e-4)


def test_onnx_order_is_one_node():
    x, w = _random((2, 3, 6, 6)), _random((4, 3, 3, 3))
    model = check(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), x, w, atol=1e-4)
    assert operations(model) == ["Conv"]


def test_what_is_between_convolutions_stays_in_their_order():
    x, first, second = _random((1, 5, 6, 3)), _random((3, 3, 3, 4)), _random((3, 3, 4, 4))
    scale, shift = _random((4,), seed=1), _random((4,), seed=2)

    def function(x, first, second, scale, shift):
        y = jax.nn.relu(_convolve(x, first, padding="SAME") * scale + shift)
        return jax.nn.relu(_convolve(y, second, padding="SAME") + y)

    model = check(function, x, first, second, scale, shift, atol=1e-4)
    assert operations(model).count("Transpose") == 4  # the input, two kernels and the result
    check(function, x, first, second, scale, shift, shapes=["b, h, w, 3", *[None] * 4], atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_kernel_that_is_larger_than_the_input(dtype):
    def function(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID")

    x, w = np.ones((2, 3, 4, 9), dtype), np.ones((3, 3, 2, 10), dtype)
    check(function, x, w, reference=False)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_no_place_for_the_kernel_in_another_order(dtype):
    x, w = _random((1, 2, 2, 3), dtype), _random((3, 2, 3, 4), dtype)
    orders = ("NHWC", "HWIO", "HNCW")
    check(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=orders), x, w
    )


@pytest.mark.parametrize(
    ("of_x", "of_w"),
    [
        ((0, 3, 5, 6), (4, 3, 2, 2)),
        ((2, 0, 5, 6), (4, 0, 2, 2)),
        ((2, 3, 0, 6), (4, 3, 2, 2)),
        ((2, 3, 5, 6), (0, 3, 2, 2)),
    ],
)
def test_nothing_to_convolve(of_x, of_w):
    def function(x, w):
        pads = [(1, 1), (1, 1)]
        whole = lax.conv_general_dilated(x.astype(int), w.astype(int), (1, 1), pads)
        turned = lax.conv_general_dilated(x, w, (1, 1), pads, None, None, ("NCHW", "OIHW", "NHWC"))
        return whole, lax.conv_general_dilated(x, w, (1, 1), pads), turned

    check(function, np.ones(of_x, np.float32), np.ones(of_w, np.float32))


@pytest.mark.parametrize("size", [1, 3])
def test_features_of_which_there_may_be_none(size):
    """With none at all ONNX Runtime's Conv does not end."""

    def function(x, w):
        return lax.conv_general_dilated(x[:, 1:], w[:, 1:], (1,), "SAME")

    x, w = (np.ones((n, size, 5), np.float32) for n in (2, 4))
    check(function, x, w[..., :3], shapes=["2, n, 5", "4, n, 3"])
