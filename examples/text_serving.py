"""Publish a JAX model of token numbers that TensorFlow Serving sends plain text.

The words become numbers in TensorFlow, by a lookup table whose vocabulary is a file of the model,
and the scores become names of classes. The version below FOLDER is called as a server would: by the
session loader, with the signature's own names, in a process that has TensorFlow alone.

    python examples/text_serving.py FOLDER
"""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import bridge.serving

REVIEWS = {
    "good": ["a good film", "great acting and a good story", "great fun", "i liked the story"],
    "bad": ["a bad film", "dull acting and a bad story", "dull and bad", "i hated the film"],
}
ASKED = ["a great story", "i hated the dull acting", "great good unheard-of fun"]
CLASSES = tuple(REVIEWS)
WORDS, SIZE, STEPS = 8, 4, 100

CLIENT = """
import sys
import tensorflow as tf

folder, *texts = sys.argv[1:]
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    signature = loaded.signature_def["serving_default"]
    fetched = {name: tensor.name for name, tensor in signature.outputs.items()}
    results = session.run(fetched, {signature.inputs["text"].name: texts})
for text, label, score in zip(texts, results["label"], results["score"]):
    print(f"{text}: {label.decode()} ({score:.3f})")
assert "bridge" not in sys.modules
"""


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    words = sorted({word for texts in REVIEWS.values() for text in texts for word in text.split()})
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(words))
    tokenize = tokenizer(vocabulary)
    params = train(tokenize, len(words) + 1)

    composed = bridge.serving.compose(
        predict,
        folder / "composed",
        params=params,
        args=f"i32[b,{WORDS}]",
        platforms=["cpu"],
        gradient_order=0,
        batch_buckets=(1, 8),
        preprocess=tokenize,
        request={"text": tf.TensorSpec([None], tf.string)},
        postprocess=name_classes,
        overwrite=True,
    )
    published = bridge.serving.publish(
        composed,
        folder / "models" / "reviews",
        # Strings are not made up: requests as they will come, repeated to the allowed sizes.
        warmup={"serving_default": [{"text": ASKED[:1]}]},
        batching=(1, 8),
    )
    print(f"version {published.version} with {published.warmup} warmup requests")

    scores = np.asarray(predict(params, tokenize(tf.constant(ASKED)).numpy()))
    for text, row in zip(ASKED, scores, strict=True):
        print(f"{text}: {CLASSES[row.argmax()]} ({row.max():.3f})")
    print("by the session loader, in another process:", flush=True)
    subprocess.run([sys.executable, "-c", CLIENT, published.path, *ASKED], check=True)


def predict(params, ids):
    embedded = params["embedding"][ids] * (ids > 0)[..., None]
    return jax.nn.softmax(embedded.sum(1) @ params["out"])


def tokenizer(vocabulary):
    """Texts -> numbers of words; 0 is none, or one that is not in the vocabulary."""
    index = tf.lookup.TextFileIndex
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            str(vocabulary), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
        ),
        default_value=-1,
    )

    def tokenize(text):
        words = tf.strings.split(tf.strings.lower(text))
        numbers = tf.ragged.map_flat_values(table.lookup, words) + 1
        return tf.cast(numbers.to_tensor(shape=[None, WORDS]), tf.int32)

    return tokenize


def name_classes(output_0):
    return {
        "label": tf.gather(tf.constant(CLASSES), tf.argmax(output_0, 1)),
        "score": tf.reduce_max(output_0, 1),
    }


def train(tokenize, count):
    ids = np.concatenate([tokenize(tf.constant(texts)).numpy() for texts in REVIEWS.values()])
    labels = np.repeat(np.arange(len(CLASSES)), [len(texts) for texts in REVIEWS.values()])
    draw = np.random.default_rng(0).standard_normal
    params = {
        "embedding": (draw((count, SIZE)) / 4).astype(np.float32),
        "out": (draw((SIZE, len(CLASSES))) / 2).astype(np.float32),
    }

    def loss(params):
        return -jnp.log(predict(params, ids)[jnp.arange(len(labels)), labels]).mean()

    @jax.jit
    def step(params):
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, jax.grad(loss)(params))

    for _ in range(STEPS):
        params = step(params)
    return jax.tree.map(np.asarray, params)


if __name__ == "__main__":
    main()
