"""Convolutions of every kind: windows, groups, dimensions and orders of them."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import FLOATS, NUMBERS, Lines
from tests.operations.operands import Operand, rows

_LAYOUT, _3D = ("NHWC", "HWIO", "NHWC"), ("NDHWC", "DHWIO", "NDHWC")
# What is particular, the shape of the image and of the kernel.
_KINDS = {
    "same": ({}, (2, 6, 7, 4), (3, 3, 4, 6)),
    "valid": ({"padding": "VALID"}, (2, 6, 7, 4), (3, 2, 4, 6)),
    "strides": ({"window_strides": (2, 3)}, (2, 9, 8, 4), (3, 2, 4, 6)),
    "uneven": ({"padding": ((2, 1), (0, 3))}, (2, 6, 7, 4), (3, 3, 4, 6)),
    "cut off": ({"padding": ((-1, 1), (0, -2))}, (2, 6, 7, 4), (3, 3, 4, 6)),
    "dilated kernel": ({"rhs_dilation": (2, 1)}, (2, 6, 7, 4), (3, 3, 4, 6)),
    "spread": ({"lhs_dilation": (2, 3), "padding": ((1, 1), (2, 1))}, (2, 9, 8, 4), (3, 2, 4, 6)),
    "spread, strides": ({"window_strides": (2, 1), "lhs_dilation": (2, 3),
                         "padding": ((1, 1), (2, 1))}, (2, 9, 8, 4), (3, 2, 4, 6)),
    "spread far": ({"lhs_dilation": (2, 2), "rhs_dilation": (1, 2), "padding": ((5, 4), (2, 2))},
                   (2, 9, 8, 4), (3, 2, 4, 6)),
    "groups": ({"feature_group_count": 2}, (2, 6, 7, 4), (3, 3, 2, 6)),
    "groups, spread": ({"feature_group_count": 2, "lhs_dilation": (2, 2),
                        "padding": ((2, 2), (1, 2))}, (2, 6, 5, 4), (3, 3, 2, 8)),
    "depthwise": ({"feature_group_count": 4}, (2, 6, 7, 4), (3, 3, 1, 8)),
    "depthwise, strides": ({"feature_group_count": 4, "window_strides": (2, 1)}, (2, 6, 7, 4),
                           (3, 3, 1, 8)),
    "depthwise, dilated": ({"feature_group_count": 4, "rhs_dilation": (2, 1)}, (2, 6, 7, 4),
                           (3, 3, 1, 8)),
    "groups of the batch": ({"batch_group_count": 2}, (4, 6, 7, 3), (3, 3, 3, 6)),
    "channels first": ({"dimension_numbers": ("NCHW", "OIHW", "NCHW")}, (2, 4, 6, 7), (6, 4, 3, 3)),
    "no dimension": ({"window_strides": (), "padding": (), "dimension_numbers": None}, (2, 3),
                     (4, 3)),
    "one dimension": ({"window_strides": (2,), "dimension_numbers": ("NHC", "HIO", "NHC")},
                      (2, 7, 4), (3, 4, 6)),
    "three dimensions": ({"dimension_numbers": _3D, "window_strides": (1, 2, 1)}, (1, 4, 5, 4, 2),
                         (2, 3, 2, 2, 3)),
    "three dimensions in groups": (
        {"dimension_numbers": _3D, "window_strides": (1, 1, 1), "feature_group_count": 2},
        (1, 4, 5, 4, 2), (2, 3, 2, 1, 4),
    ),
    "three dilated dimensions": (
        {"dimension_numbers": _3D, "window_strides": (1, 1, 1), "lhs_dilation": (2, 1, 1),
         "rhs_dilation": (1, 2, 1), "padding": ((0, 1), (2, 1), (-1, 0))},
        (1, 3, 4, 5, 2), (2, 2, 3, 2, 4),
    ),
    "four dimensions": ({"dimension_numbers": ("N0123C", "0123IO", "N0123C"),
                         "window_strides": (1,) * 4}, (2, 3, 4, 2, 3, 2), (2, 2, 2, 2, 2, 3)),
    "a large kernel": ({"padding": "VALID"}, (2, 4, 9, 3), (2, 10, 3, 4)),
    "no place": ({"padding": "VALID", "dimension_numbers": ("NHWC", "HWIO", "HNCW")}, (1, 2, 2, 3),
                 (3, 2, 3, 4)),
    "no features": ({}, (2, 5, 6, 0), (2, 2, 0, 4)),
    "no rows": ({"padding": ((1, 1), (1, 1))}, (2, 0, 6, 3), (2, 2, 3, 4)),
    "no images": ({}, (0, 5, 6, 3), (2, 2, 3, 4)),
    "no results": ({}, (2, 5, 6, 3), (2, 2, 3, 0)),
}  # fmt: skip
_PLAIN = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": _LAYOUT}
_numbers = Lines("jax.lax", (*NUMBERS, "bool", "complex64"))


def _convolved(options, f, x, w):
    return f(x, w, **{**_PLAIN, **options})


def _followed(f, x, w):
    """What is along some dimensions, of images whose channels may be elsewhere."""
    y = _convolved({}, f, x, w)
    along = y * jnp.arange(y.shape[2], dtype=y.dtype)[:, None]
    return [
        y.sum((1, 2)), y.max((0, 2)), along + y, jnp.concatenate([y, y], 2), y[0],
        y.transpose(1, 3, 0, 2), jnp.where(y > 0, 1.0, 2.0),
    ]  # fmt: skip


def _pooled(f, x):
    """Calls what rectifies an image, and takes the greatest and the mean of windows of it."""
    image, window = f(x), (1, 2, 2, 1)
    least, zero = (np.array(number, x.dtype) for number in (-np.inf, 0))
    most = [
        lax.reduce_window(image, least, lax.max, window, window, padding)
        for padding in ("SAME", "VALID")
    ]
    return [*most, lax.reduce_window(image, zero, lax.add, window, window, "VALID") / 4]


CASES = (
    *[
        case
        for note, (options, image, kernel) in _KINDS.items()
        for case in _numbers(
            "conv_general_dilated", Operand(image, -9, 10, extreme=False),
            Operand(kernel, -9, 10, extreme=False), note=note,
            by=functools.partial(_convolved, options),
        )
    ],
    # Of any number of images, and of any size.
    *Lines("jax.lax", FLOATS)(
        "conv_general_dilated", rows(6, 5, 3, extreme=False), Operand((3, 2, 3, 4), extreme=False),
        note="any number", by=lambda f, x, w: [
            _convolved(options, f, x, w)
            for options in ({}, {"window_strides": (2, 2)},
                            {"lhs_dilation": (2, 1), "padding": ((2, 1), (1, 1))})],
    ),
    *Lines("jax.lax", FLOATS)(
        "conv_general_dilated", rows(2, 3, extreme=False), Operand((3, 3, 4), extreme=False),
        note="any size", by=lambda f, x, w: [
            f(x, w, stride, padding, dimension_numbers=("HNC", "HIO", "HNC"))
            for stride in ((1,), (2,)) for padding in ("SAME", ((2, 1),))],
    ),
    *Lines("jax.lax", FLOATS)(
        "conv_general_dilated", Operand((2, 6, 6, 2), extreme=False),
        Operand((3, 3, 2, 4), extreme=False), note="and what follows", by=_followed,
    ),
    *Lines("jax.lax", FLOATS, without=("empty",))(
        "conv_general_dilated", rows(2, 5, extreme=False), rows(4, 3, extreme=False),
        note="maybe no features", by=lambda f, x, w: f(
            x.swapaxes(0, 1)[:, 1:], w.swapaxes(0, 1)[:, 1:], (1,), "SAME"),
    ),
    *Lines("jax.lax", FLOATS)(
        "conv_transpose", Operand((1, 2, 6), extreme=False), Operand((3, 2, 3), extreme=False),
        note="reversed", by=lambda f, x, w: f(
            x, w.transpose(2, 1, 0), (2,), "SAME", dimension_numbers=("NCH", "HIO", "NCH"),
            transpose_kernel=False),
    ),
    *Lines("jax.nn", FLOATS)("relu", Operand((1, 7, 6, 1)), note="and pools", by=_pooled),
)  # fmt: skip
