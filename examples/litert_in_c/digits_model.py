"""Digits in C: train in JAX, save as a LiteRT model, and write images for read_digits.c.

python examples/litert_in_c/digits_model.py FOLDER     # writes digits.tflite and samples.bin
cc … read_digits.c && ./read_digits FOLDER/digits.tflite FOLDER/samples.bin
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bridge

TRAINING = 1400
SHOWN = 24


def classify(params, image):
    """Return the digit of each image, and how probable it is."""
    scores = jax.nn.gelu(image @ params["hidden"]) @ params["output"]
    return {"probability": jax.nn.softmax(scores).max(-1), "digit": scores.argmax(-1)}


def loss(params, image, label):
    """Return the mean cross-entropy of a batch."""
    scores = jax.nn.gelu(image @ params["hidden"]) @ params["output"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), label[:, None], axis=-1).mean()


def train(images, labels):
    """Return parameters after a few hundred steps of gradient descent."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": jax.random.normal(keys[0], (64, 64)) / 8,
        "output": jax.random.normal(keys[1], (64, 10)) / 8,
    }
    gradient = jax.jit(jax.grad(loss))
    for _ in range(300):
        steps = gradient(params, images, labels)
        params = jax.tree.map(lambda p, g: p - g, params, steps)
    return params


def main(folder):
    """Write digits.tflite, for batches of any size, and samples.bin; print what JAX reads."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    params = train(images[:TRAINING], labels[:TRAINING])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "digits.tflite"
    bridge.save_litert(classify, path, params=params, args="f32[batch,64]", overwrite=True)
    images, labels = images[-SHOWN:], labels[-SHOWN:]
    # An int32, how many there are; the images; what they show.
    samples = np.int32(SHOWN).tobytes() + images.tobytes() + labels.tobytes()
    (folder / "samples.bin").write_bytes(samples)
    read = classify(params, images)
    for digit, probability in zip(read["digit"], read["probability"], strict=True):
        print(f"{digit} {probability:.7f}")
    print(f"{int((read['digit'] == labels).sum())} of {SHOWN} right")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
