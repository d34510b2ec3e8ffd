"""The comparison of ONNX Runtime's optimizers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import bridge

pytest.importorskip("onnxruntime")
from tests.operations import optimizers


def test_a_model_is_the_same_at_every_level():
    model = bridge.to_onnx(lambda x: jax.nn.softmax(x @ x.T), args="f32[3,4]")
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    assert optimizers.differences(model, [x], one_by_one=True) == []
    assert optimizers._against_reference(model, [x]) == []


def test_a_difference_is_named():
    x = np.float32([1, 2])
    assert optimizers._difference([x], [x]) == ""
    assert optimizers._difference([x, x], [x, x + 1]).startswith("result 1: 2 of 2: [0] 1.0 for 2.")
    assert optimizers._difference("an error", [x]) == "an error"
