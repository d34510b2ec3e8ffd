"""A Haiku function with batch statistics, trained a little, becomes a SavedModel in one line.

python examples/from_haiku.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

import bridge


def network(image, *, is_training=False):
    x = hk.Conv2D(8, 3)(image)
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training)
    return {"logits": hk.Linear(10)(jax.nn.relu(x).mean((1, 2)))}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "model"
        images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
        function = hk.without_apply_rng(hk.transform_with_state(network))
        params, state = train(
            function, *function.init(jax.random.key(0), images, is_training=True), images
        )

        bridge.save(
            function, folder, params=(params, state), args="f32[batch,8,8,1]", overwrite=True
        )

        assert "tensorflow" not in sys.modules
        compare(folder, images, function.apply(params, state, images)[0]["logits"])


def train(function, params, state, images):
    """A few steps, so that the batch statistics are not those of the start."""

    @jax.jit
    def step(params, state):
        def loss(params):
            results, new = function.apply(params, state, images, is_training=True)
            return jnp.mean((results["logits"] - 1) ** 2), new

        gradient, new = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), new

    for _ in range(5):
        params, state = step(params, state)
    return params, state


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
