"""An Equinox module, trained a little, becomes a SavedModel in one line.

The module is for one image, and `equinox.filter_vmap` makes it one for batches.

    python examples/from_equinox.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import bridge


class Network(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    dense: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 8, 3, padding=1, key=first)
        self.norm = eqx.nn.GroupNorm(2, 8)
        self.dense = eqx.nn.Linear(8, 10, key=second)

    def __call__(self, image):
        x = self.norm(self.conv(image))
        return {"logits": self.dense(jax.nn.relu(x).mean((1, 2)))}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "model"
        images = np.random.default_rng(0).normal(size=(32, 1, 8, 8)).astype(np.float32)
        network = train(Network(jax.random.key(0)), images)

        bridge.save(eqx.filter_vmap(network), folder, args="f32[batch,1,8,8]", overwrite=True)

        assert "tensorflow" not in sys.modules
        compare(folder, images, jax.vmap(network)(images)["logits"])


def train(network, images):
    @eqx.filter_jit
    def step(network):
        loss = lambda network: jnp.mean((jax.vmap(network)(images)["logits"] - 1) ** 2)  # noqa: E731
        gradient = eqx.filter_grad(loss)(network)
        return eqx.apply_updates(network, jax.tree.map(lambda g: -0.1 * g, gradient))

    for _ in range(5):
        network = step(network)
    return network


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
