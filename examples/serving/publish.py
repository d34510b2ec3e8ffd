"""Train a classifier of digits in JAX, and publish it for TensorFlow Serving.

TensorFlow is not imported. Below FOLDER there will be

    models/digits/1, 2, …   the versions, each with its warmup requests; what is served already is
                            no new one
    requests.npz            images that the clients send, and what JAX says of them
    compiled/               what the server compiles, for versions with the same program

    python examples/serving/publish.py FOLDER
"""

import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bridge.serving

BATCH_SIZES = (1, 8, 32)
TRAINING_IMAGES, SENT, STEPS = 1400, 20, 200


def main() -> None:
    folder = Path(sys.argv[1])
    images, labels = digits()
    params = train(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES])

    batch = jax.export.symbolic_shape("batch, 8, 8")
    specs = jax.tree.map(jnp.asarray, params), jax.ShapeDtypeStruct(batch, "float32")
    exported = jax.export.export(jax.jit(classify), platforms=["cpu", "cuda"])(*specs)
    published = bridge.serving.publish(
        exported,
        folder / "models" / "digits",
        params=params,
        gradient_order=0,
        operations="xla",  # compiled once, and kept; without it every server runs the model
        tensorflow="2.18",
        warmup=BATCH_SIZES,
        batching={"allowed_batch_sizes": BATCH_SIZES, "batch_timeout_micros": 2000},
        keep=3,
    )
    print(f"version {published.version} in {published.path}")
    compiled = (folder / "compiled").absolute()
    print(f"export TF_XLA_FLAGS=--tf_xla_persistent_cache_directory={compiled}")
    print(*published.servers, sep="\n")

    sent = images[-SENT:]
    expected = {name: np.asarray(value) for name, value in classify(params, sent).items()}
    np.savez(folder / "requests.npz", image=sent, **expected)
    print(f"{np.sum(expected['label'] == labels[-SENT:])} of {SENT} right")


def digits():
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.images[order] / 16).astype(np.float32), data.target[order]


def classify(params, image):
    hidden = jax.nn.relu(image.reshape(image.shape[0], -1) @ params["hidden"] + params["bias"])
    logits = hidden @ params["out"]
    return {"label": jnp.argmax(logits, -1), "probability": jax.nn.softmax(logits)}


def train(images, labels):
    draw = np.random.default_rng(1).standard_normal
    params = {
        "hidden": (draw((64, 32)) / 8).astype(np.float32),
        "bias": np.zeros(32, np.float32),
        "out": (draw((32, 10)) / 6).astype(np.float32),
    }

    def loss(params):
        probability = classify(params, images)["probability"]
        return -jnp.log(probability[jnp.arange(len(labels)), labels] + 1e-9).mean()

    @jax.jit
    def step(params):
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, jax.grad(loss)(params))

    for _ in range(STEPS):
        params = step(params)
    return jax.tree.map(np.asarray, params)


if __name__ == "__main__":
    main()
