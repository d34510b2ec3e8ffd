"""Operations of CHLO in texts, which are computed by what they say that they are made of."""

from __future__ import annotations

import numpy as np
import pytest

import bridge
from tests.bridge.onnx.checking import assert_same, evaluate, run


def _check(tmp_path, text, arrays, *results):
    """Assert that the program in a file has these results everywhere."""
    path = tmp_path / "program.mlir"
    path.write_text(text)
    model = bridge.to_onnx(path)
    assert_same(run(model, arrays), results, rtol=1e-6, atol=0.0)
    assert_same(evaluate(model, arrays), results, rtol=1e-6, atol=0.0)
    return model


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan(reverse, tmp_path):
    text = f"""func.func @sums(%x: tensor<2x4xf32>, %s: tensor<2xf32>)
        -> (tensor<2x4xf32>, tensor<2xf32>) {{
      %0:2 = chlo.scan(%x) inits(%s) dimension=1
          attributes {{is_reverse = {str(reverse).lower()}}} {{
      ^bb0(%a: tensor<2xf32>, %c: tensor<2xf32>):
        %1 = stablehlo.add %a, %c : tensor<2xf32>
        stablehlo.return %1, %1 : tensor<2xf32>, tensor<2xf32>
      }} : (tensor<2x4xf32>, tensor<2xf32>) -> (tensor<2x4xf32>, tensor<2xf32>)
      return %0#0, %0#1 : tensor<2x4xf32>, tensor<2xf32> }}"""
    x, start = np.arange(8, dtype=np.float32).reshape(2, 4), np.float32([10, 20])
    sums = np.cumsum(x[:, ::-1] if reverse else x, axis=1) + start[:, None]
    kept = sums[:, ::-1] if reverse else sums
    _check(tmp_path, text, [x, start], np.ascontiguousarray(kept), sums[:, -1])


def test_a_composite_is_one_operation(tmp_path):
    text = """func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = chlo.sinh %x : tensor<3xf32> -> tensor<3xf32>
      return %0 : tensor<3xf32> }"""
    x = np.float32([-1, 0, 2])
    model = _check(tmp_path, text, [x], np.sinh(x))
    assert [node.op_type for node in model.graph.node] == ["Sinh"]


def test_the_upper_half_of_a_product(tmp_path):
    text = """func.func @f(%x: tensor<3xi64>, %y: tensor<3xi64>) -> tensor<3xi64> {
      %0 = "chlo.mulhi"(%x, %y) : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi64>
      return %0 : tensor<3xi64> }"""
    x, y = np.array([1 << 61, -(1 << 61), -7]), np.array([40, 40, 3])
    upper = [int(a) * int(b) >> 64 for a, b in zip(x, y, strict=True)]
    _check(tmp_path, text, [x, y], np.array(upper))


def test_a_choice_that_broadcasts(tmp_path):
    text = """func.func @f(%p: tensor<3xi1>, %x: tensor<2x3xf32>, %y: tensor<2x3xf32>)
        -> tensor<2x3xf32> {
      %0 = "chlo.broadcast_select"(%p, %x, %y)
        : (tensor<3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32> }"""
    choice, x = np.array([True, False, True]), np.arange(6, dtype=np.float32).reshape(2, 3)
    _check(tmp_path, text, [choice, x, -x], np.where(choice, x, -x))
