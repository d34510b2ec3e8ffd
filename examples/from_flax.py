"""A Flax linen module, trained a little, becomes a SavedModel in one line.

python examples/from_flax.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import bridge


class Network(nn.Module):
    @nn.compact
    def __call__(self, image, *, train=False):
        x = nn.Conv(8, (3, 3))(image)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.Dropout(0.5, deterministic=not train)(x.mean((1, 2)))
        return {"logits": nn.Dense(10)(x)}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "model"
        images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
        network = Network()
        variables = train(network, network.init(jax.random.key(0), images), images)

        bridge.save(network, folder, params=variables, args="f32[batch,8,8,1]", overwrite=True)

        assert "tensorflow" not in sys.modules
        compare(folder, images, network.apply(variables, images)["logits"])


def train(network, variables, images):
    """A few steps, so that the batch statistics are not those of the start."""

    @jax.jit
    def step(variables, key):
        def loss(params):
            results, state = network.apply(
                {**variables, "params": params},
                images,
                train=True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            return jnp.mean((results["logits"] - 1) ** 2), state

        gradient, state = jax.grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], gradient)
        return {"params": params, **state}

    for key in jax.random.split(jax.random.key(1), 5):
        variables = step(variables, key)
    return variables


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
