"""Operations that JAX does not write, but older programs and other frameworks do."""

from __future__ import annotations

import numpy as np
import pytest
from jax.lax import linalg

from tests.onnx.checking import check
from tests.onnx.written import check_written

X = np.array([[1, 2.5], [3, -4], [5, 5.5]], np.float32)
SCALE = np.array([2, 0.5], np.float32)
VARIANCE = X.var(0)
NORMALIZED = (X - X.mean(0)) / np.sqrt(VARIANCE + np.float32(0.01))
EPSILON = "{epsilon = 0.01 : f32, feature_index = 1 : i64}"
FLOAT, INT, BOOL = "tensor<f32>", "tensor<i32>", "tensor<i1>"
COMPARATOR = """({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1> })"""


def test_batch_norm_inference():
    check_written(
        f"""%r0 = "stablehlo.batch_norm_inference"(%a, %b, %c, %d, %e) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
        -> tensor<3x2xf32>""",
        [X, SCALE, SCALE + 1, X.mean(0), VARIANCE],
        NORMALIZED * SCALE + SCALE + 1,
    )


def test_batch_norm_training():
    check_written(
        f"""%r0, %r1, %r2 = "stablehlo.batch_norm_training"(%a, %b, %c) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)
        -> (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)""",
        [X, SCALE, SCALE + 1],
        NORMALIZED * SCALE + SCALE + 1,
        X.mean(0),
        VARIANCE,
    )


def test_batch_norm_gradients():
    gradient = np.array([[1, 0], [0.5, 2], [-1, 3]], np.float32)
    of_scale = (gradient * NORMALIZED).sum(0)
    rest = gradient - gradient.mean(0) - NORMALIZED * of_scale / 3
    check_written(
        f"""%r0, %r1, %r2 = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<3x2xf32>)
        -> (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)""",
        [X, SCALE, X.mean(0), VARIANCE, gradient],
        SCALE * rest / np.sqrt(VARIANCE + np.float32(0.01)),
        of_scale,
        gradient.sum(0),
        rtol=1e-4,
    )


def test_einsum():
    a, b = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.ones((2, 2, 4), np.float32)
    check_written(
        """%r0 = stablehlo.einsum %a, %b, config = "bij,bjk->bik"
        : (tensor<2x3x2xf32>, tensor<2x2x4xf32>) -> tensor<2x3x4xf32>""",
        [a, b],
        np.einsum("bij,bjk->bik", a, b),
    )


def test_torch_index_select():
    a, index = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.array([2, 0, 9], np.int32)
    check_written(
        """%r0 = "stablehlo.torch_index_select"(%a, %b) {dim = 1 : i64, batch_dims = 0 : i64}
        : (tensor<2x3x2xf32>, tensor<3xi32>) -> tensor<2x3x2xf32>""",
        [a, index],
        a[:, [2, 0, 2]],
    )


def test_map():
    check_written(
        """%r0 = "stablehlo.map"(%a, %a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %c = stablehlo.constant dense<2.0> : tensor<f32>
            %p = stablehlo.multiply %x, %c : tensor<f32>
            %q = stablehlo.add %p, %y : tensor<f32>
            stablehlo.return %q : tensor<f32> }) {dimensions = array<i64: 0, 1>}
        : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>""",
        [X],
        3 * X,
    )


def test_tokens():
    check_written(
        """%t = stablehlo.create_token : !stablehlo.token
        %u = stablehlo.after_all %t, %t : !stablehlo.token
        %r0 = stablehlo.negate %a : tensor<3x2xf32>""",
        [X],
        -X,
    )


def test_a_sort_by_a_plain_comparison():
    check_written(
        f"""%r0 = "stablehlo.sort"(%a) {COMPARATOR} {{dimension = 0 : i64, is_stable = true}}
        : (tensor<3x2xf32>) -> tensor<3x2xf32>""",
        [X],
        np.sort(X, 0),
    )


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(lower):
    matrix = np.array([[4, 2, 0], [2, 5, 1], [0, 1, 3]], np.float32)
    factor = np.linalg.cholesky(matrix)
    check_written(
        f"""%r0 = "stablehlo.cholesky"(%a) {{lower = {str(lower).lower()}}}
        : (tensor<3x3xf32>) -> tensor<3x3xf32>""",
        [matrix],
        factor if lower else factor.T,
    )


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve(left, transpose):
    matrix = np.array([[1, 0, 0], [2, 3, 0], [4, 5, 6]], np.float32)
    right = np.array([[7, 8, 9]], np.float32)
    used = matrix.T if transpose == "TRANSPOSE" else matrix
    right = right.T.copy() if left else right
    solution = np.linalg.solve(used, right) if left else np.linalg.solve(used.T, right.T).T
    dims = "3x1" if left else "1x3"
    check_written(
        f"""%r0 = "stablehlo.triangular_solve"(%a, %b) {{left_side = {str(left).lower()},
        lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose {transpose}>}}
        : (tensor<3x3xf32>, tensor<{dims}xf32>) -> tensor<{dims}xf32>""",
        [matrix, right],
        np.ascontiguousarray(solution).astype(np.float32),
    )


def test_lapack_leaves_the_other_triangle():
    matrix = np.array([[4, 2, 7], [2, 5, 1], [7, 1, 30]], np.float32)
    check(lambda a: linalg.cholesky_p.bind(a), matrix, rtol=1e-4)


def test_comparators_of_bits():
    """As JAX wrote them before StableHLO had a total order."""
    keys = []
    for name in "xy":
        keys += [
            f"%{name}i = stablehlo.bitcast_convert %{name} : ({FLOAT}) -> {INT}",
            f"%{name}s = stablehlo.subtract %most, %{name}i : {INT}",
            f"%{name}n = stablehlo.compare LT, %{name}i, %zero : ({INT}, {INT}) -> {BOOL}",
            f"%{name}k = stablehlo.select %{name}n, %{name}s, %{name}i : {BOOL}, {INT}",
        ]
    numbers = np.float32([2, -np.nan, -0.0, 1, np.nan, 0.0, -np.inf, np.inf, -3, -2, 0.0])
    order = np.array([1, 6, 8, 9, 2, 5, 10, 3, 0, 7, 4], np.int32)
    check_written(
        f"""%n = stablehlo.iota dim = 0 : tensor<11xi32>
        %s, %r0 = "stablehlo.sort"(%a, %n) ({{ ^bb0(%x: {FLOAT}, %y: {FLOAT},
            %l: {INT}, %m: {INT}):
            %most = stablehlo.constant dense<2147483647> : {INT}
            %zero = stablehlo.constant dense<0> : {INT}
            {chr(10).join(keys)}
            %p = stablehlo.compare LT, %xk, %yk : ({INT}, {INT}) -> {BOOL}
            stablehlo.return %p : {BOOL} }}) {{dimension = 0 : i64, is_stable = true}}
        : (tensor<11xf32>, tensor<11xi32>) -> (tensor<11xf32>, tensor<11xi32>)""",
        [numbers],
        order,
    )
