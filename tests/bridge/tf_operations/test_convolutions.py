"""Convolutions of every kind, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import INTEGERS
from tests.bridge.tf_operations.checking import check, lowered, operations
from xla_call_module.errors import UnsupportedError

_NHWC = ("NHWC", "HWIO", "NHWC")


def _normal(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def _convolve(strides=(1, 1), padding="SAME", numbers=_NHWC, **options):
    return lambda x, w: lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=numbers, **options
    )


@pytest.mark.parametrize(
    ("options", "image", "kernel"),
    [
        ({}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"padding": "VALID"}, (2, 6, 7, 4), (3, 2, 4, 6)),
        ({"strides": (2, 1)}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"padding": ((2, 1), (0, 3))}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"padding": ((-1, 1), (0, -2))}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"rhs_dilation": (2, 1)}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"lhs_dilation": (2, 3), "padding": ((1, 2), (0, 1))}, (2, 6, 7, 4), (3, 3, 4, 6)),
        ({"strides": (2, 3), "lhs_dilation": (3, 1), "padding": ((1, 2), (0, 1))}, (2, 6, 7, 4),
         (3, 3, 4, 6)),
        ({"feature_group_count": 2}, (2, 6, 7, 4), (3, 3, 2, 6)),
        ({"feature_group_count": 4}, (2, 6, 7, 4), (3, 3, 1, 8)),
        ({"feature_group_count": 4, "strides": (2, 1)}, (2, 6, 7, 4), (3, 3, 1, 8)),
        ({"batch_group_count": 2}, (4, 6, 7, 3), (3, 3, 3, 6)),
        ({"numbers": ("NCHW", "OIHW", "NCHW")}, (2, 4, 6, 7), (6, 4, 3, 3)),
        ({"strides": (2,), "numbers": ("NHC", "HIO", "NHC")}, (2, 7, 4), (3, 4, 6)),
        ({"numbers": ("NDHWC", "DHWIO", "NDHWC"), "strides": (1, 2, 1)}, (1, 4, 5, 4, 2),
         (2, 3, 2, 2, 3)),
        ({"numbers": ("NDHWC", "DHWIO", "NDHWC"), "strides": (1, 1, 1),
          "feature_group_count": 2}, (1, 4, 5, 4, 2), (2, 3, 2, 1, 4)),
    ],
)  # fmt: skip
def test_convolutions(options, image, kernel):
    check(_convolve(**options), _normal(*image), _normal(*kernel), rtol=1e-5, of_largest=True)


@pytest.mark.parametrize("name", ["float16", "float64", "int32", "int8", "uint8", "int16"])
def test_convolutions_of_other_dtypes(name):
    with enable_x64(True):
        x, w = (10 * _normal(*shape) for shape in ((1, 5, 5, 2), (3, 3, 2, 4)))
        if "int" in name:
            x, w = abs(x), abs(w)
        check(_convolve(), x.astype(name), w.astype(name), rtol=1e-2 if name == "float16" else None)


_3D, _4D = ("NDHWC", "DHWIO", "NDHWC"), ("N0123C", "0123IO", "N0123C")
_KINDS = {
    "two_dimensions": ({}, (2, 5, 6, 4), (3, 3, 4, 6)),
    "depthwise": ({"feature_group_count": 4}, (2, 5, 6, 4), (3, 3, 1, 8)),
    "groups": ({"feature_group_count": 2, "strides": (2, 1)}, (2, 5, 6, 4), (3, 3, 2, 8)),
    "batch_groups": ({"batch_group_count": 2}, (4, 5, 6, 4), (3, 3, 4, 8)),
    "three_dimensions": ({"numbers": _3D, "strides": (1, 2, 1)}, (1, 3, 4, 5, 2), (2, 2, 3, 2, 4)),
    "three_dimensions_in_groups": (
        {"numbers": _3D, "strides": (1, 1, 1), "feature_group_count": 2},
        (1, 3, 4, 5, 2), (2, 2, 3, 1, 4),
    ),
    "three_dilated_dimensions": (
        {"numbers": _3D, "strides": (1, 1, 1), "padding": ((0, 1), (2, 1), (-1, 0)),
         "lhs_dilation": (2, 1, 1), "rhs_dilation": (1, 2, 1)},
        (1, 3, 4, 5, 2), (2, 2, 3, 2, 4),
    ),
    "four_dimensions": ({"numbers": _4D, "strides": (1,) * 4}, (2, 3, 4, 2, 3, 2), (2,) * 5 + (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*INTEGERS, "bool", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("kind", _KINDS)
def test_every_kind_of_every_dtype(kind, name):
    options, image, kernel = _KINDS[kind]
    with enable_x64(True):
        x, w = (10 * _normal(*shape) for shape in (image, kernel))
        x, w = ((v if name != "bool" else v > 8).astype(jnp.dtype(name)) for v in (x, w))
        check(_convolve(**options), x, w, rtol=1e-2 if name == "bfloat16" else 1e-5,
              of_largest=True)  # fmt: skip


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 0), (1, 3))])
def test_gradients_of_a_convolution(strides, padding):
    function = _convolve(strides, padding)

    def loss(x, w):
        return (function(x, w) ** 2).sum()

    image, kernel = _normal(2, 6, 7, 3), _normal(3, 2, 3, 4)
    check(jax.grad(loss, (0, 1)), image, kernel, rtol=1e-5, of_largest=True)
    assert "Conv2DBackpropFilter" in operations(jax.grad(loss, 1), image, kernel)


def test_an_image_convolution_is_one_node():
    assert operations(_convolve(), _normal(1, 5, 5, 2), _normal(3, 3, 2, 4)) == ["Conv2D"]
    depthwise = operations(
        _convolve(feature_group_count=2), _normal(1, 5, 5, 2), _normal(3, 3, 1, 2)
    )
    assert "DepthwiseConv2dNative" in depthwise


def test_a_network_of_channels_first_is_turned_once():
    function = _convolve(numbers=("NCHW", "OIHW", "NCHW"))
    names = operations(
        lambda x, w: jax.nn.relu(function(jax.nn.relu(function(x, w)), w)),
        _normal(1, 2, 5, 5),
        _normal(2, 2, 3, 3),
    )
    assert names.count("Transpose") == 3  # of the image, of the kernel and of the result


def test_a_large_kernel_without_a_kernel_is_refused():
    x, w = np.ones((1, 200, 200, 1), np.uint32), np.ones((101, 100, 1, 1), np.uint32)
    with pytest.raises(UnsupportedError, match=r"no such convolution of uint32.*10100"):
        lowered(_convolve(), x, w)
