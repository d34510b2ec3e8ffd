"""Digits with TensorFlow.js: train in JAX, save, convert, and write a page that reads them.

    python examples/tensorflow_js/digits_page.py FOLDER
    cd FOLDER && npm install @tensorflow/tfjs@4.22.0 && python -m http.server

Then open http://localhost:8000. docs/how-to/converters.md says how to install the converter.
`node run.js model < images.json` in the folder runs the same model without a browser.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bridge

SHOWN = 24


def scores_of(params, image):
    """Return ten scores for each image of 8 by 8."""
    names = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(image, params["filter"], (1, 1), "SAME", None, None, names)
    x = jax.lax.reduce_window(
        jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"
    )
    return x.reshape(-1, 4 * 4 * 16) @ params["output"]


def classify(params, image):
    """Return the digit of each image, and how probable it is."""
    scores = scores_of(params, image)
    return {"probability": jax.nn.softmax(scores).max(-1), "digit": scores.argmax(-1)}


def loss(params, image, label):
    """Return the mean cross-entropy of a batch."""
    likely = jax.nn.log_softmax(scores_of(params, image))
    return -jnp.take_along_axis(likely, label[:, None], axis=-1).mean()


def train(images, labels):
    """Return parameters after a few steps of gradient descent."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "filter": jax.random.normal(keys[0], (3, 3, 1, 16)) / 3,
        "output": jax.random.normal(keys[1], (4 * 4 * 16, 10)) / 16,
    }
    gradient = jax.jit(jax.grad(loss))
    for _ in range(100):
        steps = gradient(params, images, labels)
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, steps)
    return params


def convert(model, target):
    """Run tensorflowjs_converter, with an empty module for the package that it does not need."""
    with tempfile.TemporaryDirectory() as stub:
        (Path(stub) / "tensorflow_decision_forests.py").touch()
        environment = {**os.environ, "PYTHONPATH": stub}
        command = ["tensorflowjs_converter", "--input_format=tf_saved_model", model, target]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def main(folder):
    """Write the model, what to read, the page and run.js; print what JAX reads."""
    if shutil.which("tensorflowjs_converter") is None:
        sys.exit(
            "tensorflowjs_converter is not on the PATH: docs/how-to/converters.md installs it."
        )
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    params = train(images[:1400], labels[:1400])
    saved = folder / "saved_model"
    bridge.save(
        classify,
        saved,
        params=params,
        args="f32[batch,8,8,1]",
        operations="tensorflow",
        for_converters=True,
        overwrite=True,
    )
    convert(saved, folder / "model")
    images, labels = images[-SHOWN:], labels[-SHOWN:]
    (folder / "images.json").write_text(json.dumps({"image": images.tolist()}))
    (folder / "labels.json").write_text(json.dumps(labels.tolist()))
    for name in ("index.html", "run.js"):
        shutil.copy(Path(__file__).with_name(name), folder)
    read = classify(params, images)
    for digit, probability in zip(read["digit"], read["probability"], strict=True):
        print(f"{digit} {probability:.7f}")
    print(f"JAX reads {int((read['digit'] == labels).sum())} of {SHOWN}.")
    print(f"cd {folder} && npm install @tensorflow/tfjs@4.22.0 && python -m http.server")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
