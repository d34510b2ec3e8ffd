"""Convolutions that cut an image off and pad it have the image cut off before them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
from xla_call_module import from_exported
from xla_call_module.passes.cut_convolutions import CUT_BEFORE_CONVOLUTIONS
from xla_call_module.passes.module_pass import run_passes

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _drawn(*shape, dtype="float32"):
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def _convolved(*padding, **options):
    return lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), padding, dimension_numbers=_LAYOUT, **options
    )


def _causal(x, w):
    """The gradient of a convolution of a sequence that sees more than what is before."""
    lines = ("NHC", "HIO", "NHC")
    result, pull = jax.vjp(
        lambda x: lax.conv_general_dilated(x, w, (1,), ((4, 0),), dimension_numbers=lines), x
    )
    return pull(result)[0]


@pytest.mark.parametrize(
    ("function", "x", "w"),
    [
        (_convolved((-1, 1), (0, -2)), _drawn(2, 6, 7, 4), _drawn(3, 3, 4, 6)),
        (_convolved((-2, 2), (-1, 2)), _drawn(2, 6, 7, 4), _drawn(3, 3, 4, 6)),
        (
            _convolved((0, 0), (-1, 1), feature_group_count=2),
            _drawn(2, 6, 7, 4),
            _drawn(3, 3, 2, 6),
        ),
        (_convolved((-1, 1), (0, 0), rhs_dilation=(2, 1)), _drawn(2, 6, 7, 4), _drawn(3, 3, 4, 6)),
        (
            _convolved((-1, 1), (0, 0)),
            *(_drawn(*s, dtype="complex64") for s in [(2, 6, 7, 4), (3, 3, 4, 6)]),
        ),
        (_causal, _drawn(2, 7, 4), _drawn(3, 4, 6)),
    ],
    ids=["both", "two", "grouped", "dilated", "complex", "causal"],
)
def test_tensorflow_computes_what_jax_does(function, x, w, tmp_path):
    expected = jax.jit(function)(x, w)
    live = tf.function(bridge.convert(function), jit_compile=True, autograph=False)
    np.testing.assert_array_equal(live(x, w), expected)
    names = "bhw"[: x.ndim - 1]
    enough = [f"{name} >= 5" for name in names[1:]]
    sizes = export.symbolic_shape(", ".join(names), constraints=enough)
    rows = jax.ShapeDtypeStruct((*sizes, x.shape[-1]), x.dtype)
    bridge.save(function, tmp_path / "m", args=(rows, w), gradient_order=0)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m")(x, w), expected)


@pytest.mark.parametrize(
    "function",
    [
        _convolved((-1, 0), (0, -1)),
        _convolved((1, -1), (2, 2)),
        _convolved((-1, 1), (0, 0), lhs_dilation=(2, 1)),
    ],
)
def test_what_is_right_stays(function):
    made = export.export(jax.jit(function))(_drawn(2, 6, 7, 4), _drawn(3, 3, 4, 6))
    call = from_exported(made)
    assert run_passes(call, [CUT_BEFORE_CONVOLUTIONS]) is call
