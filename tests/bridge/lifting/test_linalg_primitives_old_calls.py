"""Linear algebra as versions of JAX before XLA's typed FFI called it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import linalg

from bridge.lifting.module_lifting import walk_module
from xla_call_module._jax import ir
from xla_call_module.stablehlo.modules import open_context

pytestmark = pytest.mark.usefixtures("x64")

MATRIX = jnp.array([[4.0, 1.0, 2.0], [1.0, 3.0, 0.5], [2.0, 0.5, 5.0]])
NUMBERS = """
%one = stablehlo.constant dense<1> : tensor<i32>
%none = stablehlo.constant dense<0> : tensor<i32>
%n = stablehlo.constant dense<3> : tensor<i32>"""
# What is selected by `info`.
CHECKED = """
%zero = stablehlo.constant dense<0> : tensor<i32>
%ok = stablehlo.compare EQ, {info}, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
%nan = stablehlo.constant dense<0x7FF8000000000000> : tensor<{type}>
%mask = stablehlo.broadcast_in_dim %ok, dims = [] : (tensor<i1>) -> tensor<{mask}>
{name} = stablehlo.select %mask, {value}, %nan : tensor<{mask}>, tensor<{type}>"""


def lifted(body, *types):
    """The function of a 3 x 3 matrix whose body is a text of MLIR."""
    results = ", ".join(f"tensor<{type_}>" for type_ in types)
    text = f"func.func public @main(%a: tensor<3x3xf64>) -> ({results}) {{{NUMBERS}{body} }}"

    def run(matrix):
        with open_context(0):
            return walk_module(ir.Module.parse(text), [matrix])

    return run


def checked(name, value, info, type_):
    return CHECKED.format(name=name, value=value, info=info, type=type_, mask=type_[:-3] + "i1")


def assert_like(ours, theirs):
    for run in (jax.jit, lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x + 1,))[1])):
        pairs = zip(run(ours)(MATRIX), run(theirs)(MATRIX), strict=True)
        for actual, expected in pairs:
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_cholesky_and_solve():
    body = """
    %f:2 = stablehlo.custom_call @lapack_dpotrf(%one, %one, %n, %a) {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<i32>)
    """ + checked("%l", "%f#0", "%f#1", "3x3xf64")
    body += """
    %scale = stablehlo.constant dense<1.0> : tensor<f64>
    %x = stablehlo.custom_call
      @blas_dtrsm(%one, %one, %one, %none, %n, %n, %one, %scale, %l, %a) {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>,
      tensor<f64>, tensor<3x3xf64>, tensor<3x3xf64>) -> tensor<3x3xf64>
    return %x : tensor<3x3xf64>"""

    def original(x):
        factor = linalg.cholesky(x, symmetrize_input=False)
        options = {"left_side": True, "lower": True, "transpose_a": True}
        return [linalg.triangular_solve(factor, x, **options)]

    assert_like(lifted(body, "3x3xf64"), original)


def test_qr():
    body = """
    %f:4 = stablehlo.custom_call @lapack_dgeqrf(%one, %n, %n, %n, %a) {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>) ->
      (tensor<3x3xf64>, tensor<3xf64>, tensor<i32>, tensor<96xf64>)
    """ + checked("%p", "%f#0", "%f#2", "3x3xf64")
    body += """
    %q:3 = stablehlo.custom_call @lapack_dorgqr(%one, %n, %n, %n, %n, %p, %f#1)
      {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>,
      tensor<3xf64>) -> (tensor<3x3xf64>, tensor<i32>, tensor<96xf64>)
    return %q#0 : tensor<3x3xf64>"""
    assert_like(lifted(body, "3x3xf64"), lambda x: [linalg.qr(x)[0]])


def test_eigh_of_the_upper_triangle_and_singular_values():
    body = """
    %e:5 = stablehlo.custom_call @lapack_dsyevd(%none, %one, %n, %a) {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>) ->
      (tensor<3x3xf64>, tensor<3xf64>, tensor<i32>, tensor<64xf64>, tensor<18xi32>)
    %s:7 = stablehlo.custom_call @lapack_dgesdd(%none, %none, %one, %n, %n, %n, %a)
      {api_version = 2 : i32} :
      (tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>,
      tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<3xf64>, tensor<3x3xf64>, tensor<3x3xf64>,
      tensor<i32>, tensor<24xi32>, tensor<96xf64>)
    return %e#0, %e#1, %s#1 : tensor<3x3xf64>, tensor<3xf64>, tensor<3xf64>"""

    def original(x):
        eigen = linalg.eigh(x, lower=False, symmetrize_input=False)
        return [*eigen, linalg.svd(x, compute_uv=False)]

    assert_like(lifted(body, "3x3xf64", "3xf64", "3xf64"), original)
