"""Operations of StableHLO that JAX does not write, and modules that are refused."""

from __future__ import annotations

import numpy as np
import pytest

import bridge
from tests.bridge.onnx.modules import check_module, exported_of

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
ROW = [RANDOM.standard_normal(3).astype(np.float32) for _ in range(4)]
BATCH_NORM = {
    "inference": """
        func.func @main(%x: tensor<2x3x4xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>,
                        %m: tensor<3xf32>, %v: tensor<3xf32>) -> tensor<2x3x4xf32> {
          %0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v)
            <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> :
            (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>)
            -> tensor<2x3x4xf32>
          return %0 : tensor<2x3x4xf32>
        }""",
    "training": """
        func.func @main(%x: tensor<2x3x4xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>)
            -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>) {
          %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o)
            <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> :
            (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)
            -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)
          return %0#0, %0#1, %0#2 : tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>
        }""",
    "grad": """
        func.func @main(%x: tensor<2x3x4xf32>, %s: tensor<3xf32>, %m: tensor<3xf32>,
                        %v: tensor<3xf32>, %g: tensor<2x3x4xf32>)
            -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>) {
          %0:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g)
            <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> :
            (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<2x3x4xf32>)
            -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)
          return %0#0, %0#1, %0#2 : tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>
        }""",
}


@pytest.mark.parametrize("name", BATCH_NORM)
def test_batch_norm(name):
    scale, offset, mean, variance = ROW
    operands = {
        "inference": [X, scale, offset, mean, abs(variance)],
        "training": [X, scale, offset],
        "grad": [X, scale, mean, abs(variance), X[::-1] * 2],
    }[name]
    check_module(BATCH_NORM[name], *operands, rtol=1e-4, atol=1e-5)


def test_a_comparator_that_has_no_keys():
    text = """
        func.func @main(%x: tensor<5xf32>) -> tensor<5xf32> {
          %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %1 = stablehlo.abs %a : tensor<f32>
            %2 = stablehlo.abs %b : tensor<f32>
            %3 = stablehlo.compare LT, %1, %2 : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %3 : tensor<i1>
          }) : (tensor<5xf32>) -> tensor<5xf32>
          return %0 : tensor<5xf32>
        }"""
    check_module(text, np.float32([-2, 1, 2, -1, 0.5]))


def test_an_attribute_that_is_not_known_is_refused():
    text = """
        func.func @main(%x: tensor<5xf32>) -> tensor<5xf32> {
          %0 = stablehlo.tanh %x {saturating = true} : tensor<5xf32>
          return %0 : tensor<5xf32>
        }"""
    with pytest.raises(bridge.InteropError, match="attribute saturating = true"):
        bridge.to_onnx(exported_of(text))


def test_a_reduction_with_a_start_that_changes_it():
    text = """
        func.func @main(%x: tensor<2x3xf32>, %s: tensor<f32>) -> tensor<2xf32> {
          %0 = stablehlo.reduce(%x init: %s) applies stablehlo.add across dimensions = [1]
            : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
          return %0 : tensor<2xf32>
        }"""
    check_module(text, X[0, :2, :3], np.float32(5))
