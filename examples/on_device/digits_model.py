"""A network that a program in C trains further, on a device without Python: train_digits.c.

It has learned scikit-learn's digits as they are; the camera of the device is turned by 90 degrees,
of which the network knows nothing. The file has the signatures `train`, which assigns the weights
and the optimizer's state, and `evaluate`. What the program has trained is read here again.

    python examples/on_device/digits_model.py FOLDER          # writes model/ and samples.bin
    cc … train_digits.c && ./train_digits FOLDER/model FOLDER/samples.bin FOLDER/trained
    python examples/on_device/digits_model.py FOLDER trained  # goes on in JAX
"""

import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import bridge

TRAINING = 1400
OPTIMIZER = optax.adam(3e-3)


def main() -> None:
    folder = Path(sys.argv[1])
    images, labels = digits()
    if sys.argv[2:] == ["trained"]:
        go_on(folder / "trained", turned(images), labels)
        return
    state = pretrain(images[:TRAINING], labels[:TRAINING])
    samples = {"images": "f32[n,64]", "labels": "i32[n]"}
    bridge.save(
        {"train": train, "evaluate": evaluate},
        folder / "model",
        params=state,
        args=samples,
        updates={"train": 0},
        overwrite=True,
    )
    write_samples(folder / "samples.bin", turned(images), labels)
    # The program saves the weights it has trained below a copy of the program's graph.
    shutil.rmtree(folder / "trained", ignore_errors=True)
    (folder / "trained" / "variables").mkdir(parents=True)
    shutil.copy(folder / "model" / "saved_model.pb", folder / "trained")


def digits():
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int32)


def turned(images):
    return np.rot90(images.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)


def scores(params, images):
    return jnp.tanh(images @ params["hidden"] + params["bias"]) @ params["output"]


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()


def train(state, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], images, labels)
    updates, optimizer = OPTIMIZER.update(gradients, state["optimizer"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": optimizer}, {"loss": loss}


def evaluate(state, images, labels):
    digit = scores(state["params"], images).argmax(-1)
    return {"right": (digit == labels).sum(), "steps": state["optimizer"][0].count}


def pretrain(images, labels):
    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": jax.random.normal(keys[0], (64, 64)) / 8,
        "bias": jnp.zeros(64),
        "output": jax.random.normal(keys[1], (64, 10)) / 8,
    }
    state = {"params": params, "optimizer": OPTIMIZER.init(params)}
    step = jax.jit(train)
    for _ in range(100):
        state, _ = step(state, images, labels)
    return state


def write_samples(path, images, labels) -> None:
    """Two uint32, how many samples there are to train with and to test; images; labels."""
    counts = np.array([TRAINING, len(labels) - TRAINING], np.uint32)
    path.write_bytes(counts.tobytes() + images.tobytes() + labels.tobytes())


def go_on(trained, images, labels) -> None:
    """The weights and the state of the optimizer, as the program in C has left them."""
    model = bridge.load(trained)
    test = {"images": images[TRAINING:], "labels": labels[TRAINING:]}
    found = model.signatures["evaluate"](**test)
    count = len(labels) - TRAINING
    print(f"JAX reads it: {found['right']} of {count} right after {found['steps']} steps")
    live = model.stateful()
    for _ in range(20):
        live.train(images=images[:TRAINING], labels=labels[:TRAINING])
    found = live.evaluate(**test)
    print(f"JAX went on: {found['right']} of {count} right after {found['steps']} steps")


if __name__ == "__main__":
    main()
