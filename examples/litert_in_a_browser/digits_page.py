"""Digits in a browser: train in JAX, save as a LiteRT model, and write a page that reads them.

    python examples/litert_in_a_browser/digits_page.py FOLDER
    cd FOLDER && npm install @litertjs/core && python -m http.server

Then open http://localhost:8000. The page asks nothing of any other server.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bridge

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
    """Write digits.tflite, digits.json and index.html; print what JAX reads."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    params = train(images[:1400], labels[:1400])
    folder.mkdir(parents=True, exist_ok=True)
    # LiteRT.js takes inputs of the shape that the file has, and resizes none.
    path, args = folder / "digits.tflite", f"f32[{SHOWN},64]"
    bridge.save_litert(classify, path, params=params, args=args, overwrite=True)
    images, labels = images[-SHOWN:], labels[-SHOWN:]
    shown = {"images": images.tolist(), "labels": labels.tolist()}
    (folder / "digits.json").write_text(json.dumps(shown))
    shutil.copy(Path(__file__).with_name("index.html"), folder)
    read = classify(params, images)
    for digit, probability in zip(read["digit"], read["probability"], strict=True):
        print(f"{digit} {probability:.7f}")
    print(f"JAX reads {int((read['digit'] == labels).sum())} of {SHOWN}.")
    print(f"cd {folder} && npm install @litertjs/core && python -m http.server")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
