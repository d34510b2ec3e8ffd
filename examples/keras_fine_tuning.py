"""Train in JAX, fine-tune the head in Keras, save it as .keras, load it without the code.

A small convolutional network learns scikit-learn's digits in JAX, but has never seen the digits
from 5 on. As a layer of Keras, frozen but for its head, it learns these by `model.fit`. What is
saved is an artifact: another process loads it, without the code of the network, and computes the
same.

    python examples/keras_fine_tuning.py [FOLDER]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

TRAINING_IMAGES = 1400
STEPS, BATCH, RATE = 200, 64, 0.05
EPOCHS = 8


def main() -> None:
    if sys.argv[1:2] == ["--load"]:
        load(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        params = train_in_jax()
        fine_tune(params, folder)
        subprocess.run([sys.executable, __file__, "--load", str(folder)], check=True)


def digits():
    import numpy as np
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order] / 16).astype(np.float32)[..., None]
    labels = data.target[order]
    training = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]
    return training, (images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:])


# In JAX


def predict(params, image):
    import jax

    for layer in ("conv1", "conv2"):
        dimensions = ("NHWC", "HWIO", "NHWC")
        image = jax.lax.conv_general_dilated(
            image, params["body"][layer], (2, 2), "SAME", dimension_numbers=dimensions
        )
        image = jax.nn.gelu(image, approximate=True)
    features = image.reshape(image.shape[0], -1)
    return features @ params["head"]["kernel"] + params["head"]["bias"]


def train_in_jax():
    import jax
    import jax.numpy as jnp
    import numpy as np

    (images, labels), _ = digits()
    images, labels = images[labels < 5], labels[labels < 5]
    keys = jax.random.split(jax.random.key(0), 3)
    normal = jax.nn.initializers.he_normal()
    params = {
        "body": {"conv1": normal(keys[0], (3, 3, 1, 16)), "conv2": normal(keys[1], (3, 3, 16, 32))},
        "head": {"kernel": normal(keys[2], (2 * 2 * 32, 10)), "bias": jnp.zeros(10)},
    }

    @jax.jit
    def step(params, image, label):
        def loss(params):
            scores = jax.nn.log_softmax(predict(params, image))
            return -jnp.take_along_axis(scores, label[:, None], axis=-1).mean()

        return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params))

    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        chosen = draw.integers(len(labels), size=BATCH)
        params = step(params, images[chosen], labels[chosen])
    return params


# In Keras


def fine_tune(params, folder: Path) -> None:
    import keras
    import numpy as np

    from bridge.keras import ExportedLayer

    keras.utils.set_random_seed(0)
    training, test = digits()
    layer = ExportedLayer(
        predict, params=params, trainable={"body": False, "head": True}, name="network"
    )
    model = keras.Sequential([keras.Input((8, 8, 1)), layer])
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print("trained:", ", ".join(weight.path for weight in model.trainable_weights))
    print("frozen: ", ", ".join(weight.path for weight in model.non_trainable_weights))
    frozen = [keras.ops.convert_to_numpy(weight) for weight in model.non_trainable_weights]

    _, before = model.evaluate(*test, verbose=0)
    model.fit(*training, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    _, after = model.evaluate(*test, verbose=0)
    print(f"accuracy before: {before:.1%}")
    print(f"accuracy after:  {after:.1%}")
    now = [keras.ops.convert_to_numpy(weight) for weight in model.non_trainable_weights]
    same = all(map(np.array_equal, frozen, now))
    print(f"what is frozen {'is as it was' if same else 'has changed'}")

    model.save(folder / "digits.keras")
    np.save(folder / "logits.npy", model.predict(test[0], verbose=0))
    (folder / "accuracy.json").write_text(json.dumps(after))


def load(folder: Path) -> None:
    """In a process that has neither the network's code nor, on Keras' TensorFlow backend, JAX."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        sys.modules["jax"] = None
    import keras
    import numpy as np

    import bridge.keras  # noqa: F401 - Keras knows the layer from then on

    _, test = digits()
    model = keras.models.load_model(folder / "digits.keras")
    _, accuracy = model.evaluate(*test, verbose=0)
    print(f"after loading:   {accuracy:.1%}")
    difference = np.abs(model.predict(test[0], verbose=0) - np.load(folder / "logits.npy")).max()
    print(f"greatest difference of a logit: {difference:.1e}")


if __name__ == "__main__":
    main()
