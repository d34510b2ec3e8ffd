"""A Flax nnx module, trained a little, becomes a SavedModel in one line.

python examples/from_nnx.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import bridge


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, image):
        x = nnx.relu(self.norm(self.conv(image)))
        return {"logits": self.dense(self.drop(x.mean((1, 2))))}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "model"
        images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
        network = Network(nnx.Rngs(0))
        train(network, images)
        network.eval()

        bridge.save(network, folder, args="f32[batch,8,8,1]", overwrite=True)

        assert "tensorflow" not in sys.modules
        compare(folder, images, network(images)["logits"])


def train(network, images) -> None:
    """A few steps, so that the batch statistics are not those of the start."""

    @nnx.jit
    def step(network):
        gradient = nnx.grad(lambda network: jnp.mean((network(images)["logits"] - 1) ** 2))(network)
        params = nnx.state(network, nnx.Param)
        nnx.update(network, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient))

    for _ in range(5):
        step(network)


def compare(folder, images, expected) -> None:
    import tensorflow as tf

    model = tf.saved_model.load(str(folder))
    trainable = {variable.ref() for variable in model.trainable_variables}
    for variable in model.variables:
        kind = "trainable" if variable.ref() in trainable else "fixed"
        print(f"{variable.name:<38} {variable.shape!s:<15} {kind}")
    difference = np.abs(model(images)["logits"] - expected).max()
    print(f"greatest difference of TensorFlow's results from JAX's: {difference:.1e}")


if __name__ == "__main__":
    main()
