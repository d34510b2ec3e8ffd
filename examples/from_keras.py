"""A Keras 3 model on the JAX backend, trained a little, becomes a SavedModel in one line.

python examples/from_keras.py [FOLDER]
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import keras
import numpy as np

import bridge


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "model"
        images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
        network = keras.Sequential(
            [
                keras.Input((8, 8, 1), name="image"),
                keras.layers.Conv2D(8, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(10),
            ]
        )
        network.compile("adam", "mean_squared_error")
        network.fit(images, np.ones((32, 10)), epochs=5, verbose=0)

        bridge.save(network, folder, overwrite=True)

        compare(folder, images, network.predict(images, verbose=0))


def compare(folder, images, expected) -> None:
    import tensorflow as tf

    model = tf.saved_model.load(str(folder))
    trainable = {variable.ref() for variable in model.trainable_variables}
    for variable in model.variables:
        kind = "trainable" if variable.ref() in trainable else "fixed"
        print(f"{variable.name:<48} {variable.shape!s:<15} {kind}")
    result = model.signatures["serving_default"](image=tf.constant(images))["output_0"]
    difference = np.abs(result - expected).max()
    print(f"greatest difference of TensorFlow's results from JAX's: {difference:.1e}")


if __name__ == "__main__":
    main()
