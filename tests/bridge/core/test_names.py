"""Names of inputs and outputs where those of the function would not do."""

from __future__ import annotations

import pytest
import tensorflow as tf

import bridge


@pytest.mark.parametrize(
    ("function", "args", "inputs"),
    [
        (lambda x, X: x + X, "f32[], f32[]", ["x", "X_1"]),  # noqa: N803 - the case is the point
        (lambda self: self * 2, "f32[]", ["self_"]),
        (lambda x, x_1, X: x + x_1 + X, "f32[], f32[], f32[]", ["x", "x_1", "X_2"]),  # noqa: N803
        (lambda é: é * 2, "f32[]", None),
    ],
)
def test_names_of_inputs_are_such_that_tensorflow_passes_them(tmp_path, function, args, inputs):
    saved = bridge.save(function, tmp_path / "m", args=args, gradient_order=0)
    names = [spec.name for spec in saved.signatures[0].inputs]
    if inputs is not None:
        assert names == inputs
    run = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    assert run(**dict.fromkeys(names, tf.constant(1.0)))["output_0"] >= 2
