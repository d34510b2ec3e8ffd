"""Keras 3 on its JAX backend, which is chosen when Keras is imported: a process of its own.

    python -m tests.bridge.exporting.keras_on_jax FOLDER

writes SavedModels, and `expected.npz` with what Keras computes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np

import bridge
from xla_call_module.errors import StructureError

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
TOKENS = np.arange(10, dtype=np.int32).reshape(5, 2) % 4


def functional():
    """Two inputs by name, two outputs, a frozen layer, and a layer with a state."""
    inputs = {
        "x": keras.Input((3,), name="x"),
        "tokens": keras.Input((None,), name="tokens", dtype="int32"),
    }
    embedding = keras.layers.Embedding(4, 3, name="embedding")
    embedding.trainable = False
    hidden = inputs["x"] + keras.ops.mean(embedding(inputs["tokens"]), axis=1)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    outputs = {"y": keras.layers.Dense(2, name="dense")(hidden), "length": inputs["tokens"]}
    return keras.Model(inputs, outputs, name="functional")


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2, name="dense")

    def call(self, features, training=False):
        return self.dense(features) * (2.0 if training else 1.0)


def gradient(model, inputs):
    """Of the sum of squares of `y` with respect to the kernel of the dense layer, by JAX."""
    variables = [variable.value for variable in model.trainable_variables]
    fixed = [variable.value for variable in model.non_trainable_variables]
    index = [v.path for v in model.trainable_variables].index("dense/kernel")

    def loss(kernel):
        changed = [*variables[:index], kernel, *variables[index + 1 :]]
        results, _ = model.stateless_call(changed, fixed, inputs, training=False)
        return jnp.sum(results["y"] ** 2)

    return jax.grad(loss)(variables[index])


def main(folder: Path) -> None:
    model = functional()
    model.compile("sgd", {"y": "mean_squared_error", "length": None})
    model.fit({"x": X, "tokens": TOKENS}, {"y": np.ones((5, 2))}, epochs=2, verbose=0)
    bridge.save(model, folder / "functional")
    if importlib.util.find_spec("onnx") is not None:
        bridge.save_onnx(model, folder / "functional.onnx")
    expected = {"y": model({"x": X, "tokens": TOKENS}, training=False)["y"]}
    expected["kernel"] = gradient(model, {"x": X, "tokens": TOKENS})

    subclassed = Subclassed()
    refused = []
    for options in ({"args": "f32[b,3]"}, {}):
        try:
            bridge.save(subclassed, folder / "refused", **options)
        except StructureError as error:
            refused.append(str(error))
        subclassed(X)
    assert "has not been built" in refused[0]
    assert "and args= is missing" in refused[1]
    bridge.save(subclassed, folder / "subclassed", args="f32[b,3]")
    expected["subclassed"] = subclassed(X)

    bridge.save(model.get_layer("dense"), folder / "layer", args="f32[b,3]")
    expected["layer"] = model.get_layer("dense")(X)
    np.savez(folder / "expected.npz", **{name: np.asarray(x) for name, x in expected.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
