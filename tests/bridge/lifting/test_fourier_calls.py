"""Fourier transforms as old versions of JAX called them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bridge.lifting.module_lifting import walk_module
from xla_call_module._jax import ir
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.modules import open_context

pytestmark = pytest.mark.usefixtures("x64")

# What jaxlib 0.4.20 wrote for the real transform of a float64[4, 6] along its last axis.
REAL = [
    20, 0, 0, 0, 0, 0, 14, 0, 16, 0, 8, 0, 5, 0, 6, 0, 12, 0, 7, 0, 14, 0, 0, 0, 0, 1, 2, 1, 2, 0,
    0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,
]  # fmt: skip
PLACES = {"kind": 26, "forward": 27, "axis": 40}  # where it says so
MODULE = """
func.func public @main(%0: tensor<{given}>) -> tensor<{made}> {{
%1 = stablehlo.constant dense<{packed}> : tensor<44xui8>
%2 = stablehlo.constant dense<[{shape}]> : tensor<2xi32>
%3 = stablehlo.constant dense<1.0> : tensor<1xf64>
%4 = stablehlo.custom_call @dynamic_ducc_fft(%1, %0, %2, %2, %2, %3, %2)
  {{api_version = 2 : i32, indices_of_shape_operands = dense<6> : tensor<1xi64>}} :
  (tensor<44xui8>, tensor<{given}>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<1xf64>,
  tensor<2xi32>) -> tensor<{made}>
return %4 : tensor<{made}> }}"""


def run(value, made, shape, **changes):
    packed = list(REAL)
    for place, number in changes.items():
        packed[PLACES[place]] = number
    element = "complex<f64>" if jnp.iscomplexobj(value) else "f64"
    given = "x".join(map(str, value.shape)) + f"x{element}"
    with open_context(0):
        text = MODULE.format(given=given, made=made, packed=packed, shape=shape)
        return walk_module(ir.Module.parse(text), [value])[0]


def test_each_kind():
    real = jnp.arange(24.0).reshape(4, 6)
    mixed, pairs = real[:, :4] * (1 + 2j), "4x4xcomplex<f64>"
    for found, expected in (
        (run(real, pairs, "4, 4"), jnp.fft.rfft(real)),
        (run(mixed, "4x7xf64", "4, 7", kind=1, forward=0), jnp.fft.irfft(mixed, n=7)),
        (run(mixed, pairs, "4, 4", kind=0), jnp.fft.fft(mixed)),
        (run(mixed, pairs, "4, 4", kind=0, forward=0), jnp.fft.ifft(mixed)),
    ):
        np.testing.assert_array_equal(found, expected)


def test_other_axes_are_refused():
    with pytest.raises(UnsupportedError, match="its axes are not the last ones"):
        run(jnp.ones((4, 6)), "4x4xcomplex<f64>", "4, 4", axis=0)
