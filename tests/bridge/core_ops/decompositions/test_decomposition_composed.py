"""Operations that lifting composes: batch normalizations, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from jax import enable_x64

from bridge.core_ops.decompositions.decomposition import COMPOSED_OPERATIONS, decompose
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.core_ops.decompositions.decomposing import contents
from tests.bridge.onnx.written import exported
from xla_call_module.exported import from_exported

FEATURES = np.array([2, 0.5, -1])
OPTIONS = "{epsilon = 0.01 : f32, feature_index = 1 : i64}"


def program(name, dtype):
    """Return a batch normalization of StableHLO, its operands and its results."""
    x = np.sin(np.arange(24) ** 1.3).reshape(2, 3, 4)
    gradient, (mean, variance) = np.cos(x * 3), (x.mean((0, 2)), x.var((0, 2)))
    deviation = np.sqrt(variance + 0.01)
    normalized = (x - mean[:, None]) / deviation[:, None]
    scaled = normalized * FEATURES[:, None] + 1
    of_offset, of_scale = gradient.sum((0, 2)), (gradient * normalized).sum((0, 2))
    rest = gradient - (of_offset[:, None] + normalized * of_scale[:, None]) / 8
    operands, results = {
        "training": ([x, FEATURES, FEATURES * 0 + 1], [scaled, mean, variance]),
        "inference": ([x, FEATURES, FEATURES * 0 + 1, mean, variance], [scaled]),
        "grad": (
            [x, FEATURES, mean, variance, gradient],
            [rest * (FEATURES / deviation)[:, None], of_scale, of_offset],
        ),
    }[name]
    return [one.astype(dtype) for one in operands], [one.astype(dtype) for one in results]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["training", "inference", "grad"])
def test_normalizations(name, dtype):
    operands, results = program(name, dtype)
    element = {"float32": "f32", "float64": "f64"}[dtype]
    types = ", ".join(f"tensor<{'2x3x4' if x.ndim > 1 else '3'}x{element}>" for x in operands)
    made = ", ".join(f"tensor<{'2x3x4' if x.ndim > 1 else '3'}x{element}>" for x in results)
    names = ", ".join(f"%r{n}" for n in range(len(results)))
    passed = ", ".join("%" + "abcde"[n] for n in range(len(operands)))
    body = f'{names} = "stablehlo.batch_norm_{name}"({passed}) {OPTIONS} : ({types}) -> ({made})'
    call = from_exported(exported(body, operands, results), carried=False)
    call = decompose(call, [COMPOSED_OPERATIONS]).call
    assert not contents(call)[0] & COMPOSED_OPERATIONS.operations
    with enable_x64(True):
        found = exported_from_call(call).call(*operands)
    for one, other in zip(found, results, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5 if dtype == "float32" else 1e-7, atol=1e-6)
