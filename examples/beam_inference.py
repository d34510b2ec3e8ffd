"""A JAX model in an Apache Beam pipeline, without TensorFlow.

A network is trained on scikit-learn's digits and saved. A pipeline then reads images with their
numbers as keys, in batches that Beam chooses, and counts how often each digit was recognized. Here
Beam runs it by itself; `--runner` hands the same pipeline to an engine on many machines.

    python examples/beam_inference.py [FOLDER] [--runner=… and other options of Beam]
"""

import sys
import tempfile
from pathlib import Path

import apache_beam as beam
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from sklearn.datasets import load_digits

import bridge
import bridge.beam

TRAINING_IMAGES = 1400


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        has_folder = len(sys.argv) > 1 and not sys.argv[1].startswith("-")
        folder = Path(sys.argv[1] if has_folder else temporary)
        images, labels = digits()
        train_and_save(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES], folder / "model")
        examples = list(enumerate(images))[TRAINING_IMAGES:]
        run(examples, labels, folder / "model", sys.argv[1 + has_folder :])


def digits():
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.data[order] / 16).astype(np.float32), data.target[order]


def predict(params, image):
    hidden = jnp.tanh(image @ params["hidden"])
    probabilities = jax.nn.softmax(hidden @ params["output"])
    return {"digit": probabilities.argmax(-1), "probability": probabilities.max(-1)}


def train_and_save(images, labels, folder) -> None:
    def loss(params):
        scores = jax.nn.log_softmax(jnp.tanh(images @ params["hidden"]) @ params["output"])
        return -scores[jnp.arange(len(labels)), labels].mean()

    keys = jax.random.split(jax.random.key(0))
    params = {
        "hidden": jax.random.normal(keys[0], (64, 64)) / 8,
        "output": jax.random.normal(keys[1], (64, 10)) / 8,
    }
    step = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.5 * g, p, jax.grad(loss)(p)))
    for _ in range(200):
        params = step(params)
    image = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 64"), jnp.float32)
    exported = jax.export.export(jax.jit(predict))(params, image)
    bridge.save(exported, folder, params=params, overwrite=True)


def run(examples, labels, folder, options) -> None:
    handler = bridge.beam.ModelHandler(folder, batch_buckets=(1, 32, 128))

    def judge(number, result):
        return int(labels[number]), float(result.inference["digit"] == labels[number])

    with beam.Pipeline(argv=options) as pipeline:
        _ = (
            pipeline
            | "images" >> beam.Create(examples)
            | RunInference(KeyedModelHandler(handler))
            | "judge" >> beam.MapTuple(judge)
            | "share" >> beam.combiners.Mean.PerKey()
            | "text" >> beam.MapTuple(lambda digit, share: f"{digit}: {share:.1%} recognized")
            | "print" >> beam.Map(print)
        )
    counters = pipeline.result.metrics().query()["counters"]
    counts = {counter.key.metric.name: counter.committed for counter in counters}
    print(f"{counts['num_inferences']} images")


if __name__ == "__main__":
    main()
