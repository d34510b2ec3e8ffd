"""Train, and publish new weights every few steps into the folder that a server watches.

The function is exported once, as version 1, with its warmup requests. From then on each version is
the same program, the same file on the disk, with other values of its variables: nothing is
exported again, and a server that keeps compiled programs compiles nothing. A watcher in a process
of its own stands for the server: it polls the folder, loads the newest version with TensorFlow
and answers with it while the training goes on.

    python examples/publish_weights.py [FOLDER]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSIONS, STEPS, KEPT = 5, 40, 3
TRAINING_IMAGES = 1400
SECONDS = 120


def main() -> None:
    if sys.argv[1:2] == ["--watch"]:
        watch(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "digits"
        base.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--watch", str(base)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            train_and_publish(base, watcher)


def digits():
    import numpy as np
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 16).astype(np.float32)
    return images, data.target[order]


def train_and_publish(base: Path, watcher) -> None:
    """Publish a version, wait until it is served, and train on."""
    import jax
    import jax.numpy as jnp

    import bridge
    import bridge.serving

    images, labels = digits()
    train = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]

    def logits(params, image):
        hidden = jnp.tanh(image @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return {"logits": hidden @ params["output"]["kernel"] + params["output"]["bias"]}

    def loss(params, image, label):
        log_probability = jax.nn.log_softmax(logits(params, image)["logits"])
        return -log_probability[jnp.arange(len(label)), label].mean()

    @jax.jit
    def step(params):
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, jax.grad(loss)(params, *train))

    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": {"kernel": jax.random.normal(keys[0], (64, 64)) / 8, "bias": jnp.zeros(64)},
        "output": {"kernel": jax.random.normal(keys[1], (64, 10)) / 8, "bias": jnp.zeros(10)},
    }
    published = bridge.serving.publish(
        logits, base, params=params, args="f32[batch,64]", warmup=(1, 8)
    )
    for version in range(1, VERSIONS + 1):
        if version > 1:
            for _ in range(STEPS):
                params = step(params)
            published = bridge.serving.publish(None, base, weights=params, keep=KEPT)
        program = Path(published) / "saved_model.pb"
        served = json.loads(watcher.stdout.readline())
        assert served["version"] == published.version == version
        right = (logits(params, images[TRAINING_IMAGES:])["logits"].argmax(1)
                 == labels[TRAINING_IMAGES:]).mean()  # fmt: skip
        print(
            f"version {version}: {right:.1%} right in JAX, {served['right']:.1%} where it is "
            f"served; {published.warmup} warmup requests, program {program.stat().st_ino}"
        )
    print("left:", ", ".join(sorted(path.name for path in base.iterdir() if path.name.isdigit())))


def watch(base: Path) -> None:
    """Load the newest version whenever there is another one, and say how good it is."""
    import tensorflow as tf

    images, labels = digits()
    seen, end = 0, time.monotonic() + SECONDS
    while seen < VERSIONS and time.monotonic() < end:
        newest = max((int(path.name) for path in base.iterdir() if path.name.isdigit()), default=0)
        if newest == seen:
            time.sleep(0.05)
            continue
        model = tf.saved_model.load(base / str(newest))
        answer = model.signatures["serving_default"](image=tf.constant(images[TRAINING_IMAGES:]))
        right = (answer["logits"].numpy().argmax(1) == labels[TRAINING_IMAGES:]).mean()
        seen = newest
        print(json.dumps({"version": seen, "right": float(right)}), flush=True)


if __name__ == "__main__":
    main()
