"""Train in JAX, save without TensorFlow, classify in TensorFlow without JAX.

A small convolutional network learns scikit-learn's digits (real scans, 8x8 pixels). One process
exports it for CPU, CUDA and TPU with a symbolic batch and writes a SavedModel; TensorFlow cannot be
imported there. A second process loads it with TensorFlow; JAX cannot be imported there.

    python examples/digits.py [--no-comparison] [FOLDER]
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINING_IMAGES = 1400
EPOCHS = 30
BATCH = 50
SHOWN = 3  # digits that were read right; a wrong one comes after them
SHADES = " ░▒▓█"
ASCII_SHADES = " .+%@"


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    folder = Path(arguments[-1] if arguments else "demo").expanduser()
    if "--save" in sys.argv:
        train_and_save(folder)
    elif "--classify" in sys.argv:
        classify(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        demonstrate(folder, compares="--no-comparison" not in sys.argv)


def demonstrate(folder: Path, *, compares: bool) -> None:
    """Run both processes, and say what they do while they do it."""
    from rich.console import Console

    console = Console(highlight=False)
    say = partial(console.print, soft_wrap=True)
    model = folder / "model"
    say("[bold]1  Python with JAX[/], where TensorFlow cannot be imported")
    say(f"   trains on {TRAINING_IMAGES:,} scanned digits, {EPOCHS} times each …")
    seconds = run(__file__, "--save", folder)
    say(f"   trained in {seconds['train']:.1f} s")
    say("   [cyan]exported = jax.export.export(jax.jit(predict), platforms=...)(params, image)[/]")
    say(f'   [cyan]bridge.save(exported, "{model}", params=params)[/]')
    size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    say(f"   {size / 1000:.0f} KB for CPU, GPU and TPU, any batch, in {seconds['save']:.1f} s")
    say("[bold]2  Python with TensorFlow[/], where neither JAX nor jaxlib can be imported")
    say(f'   [cyan]model = tf.saved_model.load("{model}")[/]')
    say('   [cyan]model.signatures["serving_default"](image=images)[/]')
    seconds = run(__file__, "--classify", folder)
    say(f"   loaded and read other digits in {seconds['classify']:.1f} s")
    say()
    report(folder, console)
    benchmark = ROOT / "tests" / "benchmarks" / "digits.py"
    if compares and benchmark.is_file():
        say()
        say("[bold]3  The same with jax2tf[/]; Ctrl-C, or --no-comparison, leaves it out …")
        with suppress(KeyboardInterrupt):
            compare(run(benchmark, folder), say)


def compare(seconds, say) -> None:
    ratio = seconds["jax2tf"] / seconds["bridge"]
    say(f"   saved in {seconds['jax2tf']:.1f} s, [bold]{ratio:.0f} times as long[/]")


def run(*command: object) -> dict[str, float]:
    """The seconds that a process prints; what frameworks log is printed only if it fails."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# In JAX


def network():
    """The functions that make the parameters and that classify images."""
    import jax
    import jax.numpy as jnp

    def init(key):
        shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
        keys = jax.random.split(key, len(shapes))
        return {
            name: {
                "kernel": jax.nn.initializers.he_normal()(key, shape),
                "bias": jnp.zeros(shape[-1]),
            }
            for key, (name, shape) in zip(keys, shapes.items(), strict=True)
        }

    def convolve(layer, x, stride):
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.gelu(x + layer["bias"], approximate=False)

    def predict(params, image):
        x = convolve(params["conv1"], image, 1)
        x = convolve(params["conv2"], x, 2)
        x = x.reshape(x.shape[0], -1)
        logits = x @ params["dense"]["kernel"] + params["dense"]["bias"]
        return {"label": jnp.argmax(logits, axis=-1), "probability": jax.nn.softmax(logits)}

    return init, predict


def train_and_save(folder: Path) -> None:
    sys.modules["tensorflow"] = None
    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np
    from sklearn.datasets import load_digits

    import bridge

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order] / 16).astype(np.float32)[..., None]
    labels = digits.target[order]
    training = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]
    test_images, test_labels = images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:]
    init, predict = network()

    def loss(params, image, label):
        probability = predict(params, image)["probability"]
        return -jnp.mean(jnp.log(probability[jnp.arange(len(label)), label] + 1e-9))

    @jax.jit
    def train_step(params, momentum, image, label):
        gradient = jax.grad(loss)(params, image, label)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.02 * m, params, momentum), momentum

    started = time.perf_counter()
    params = init(jax.random.key(0))
    momentum = jax.tree.map(jnp.zeros_like, params)
    shuffle = np.random.default_rng(0)
    for _ in range(EPOCHS):
        for chosen in shuffle.permutation(TRAINING_IMAGES).reshape(-1, BATCH):
            params, momentum = train_step(
                params, momentum, training[0][chosen], training[1][chosen]
            )
    expected = jax.jit(predict)(params, test_images)
    trained = time.perf_counter()

    batch = jax.export.symbolic_shape("batch, 8, 8, 1")
    exported = jax.export.export(jax.jit(predict), platforms=["cpu", "cuda", "tpu"])(
        params, jax.ShapeDtypeStruct(batch, jnp.float32)
    )
    bridge.save(exported, folder / "model", params=params, overwrite=True)
    saved = time.perf_counter()

    np.savez(
        folder / "test_set.npz",
        images=test_images,
        labels=test_labels,
        label=expected["label"],
        probability=expected["probability"],
    )
    print(json.dumps({"train": trained - started, "save": saved - trained}))


# In TensorFlow


def classify(folder: Path) -> None:
    sys.modules["jax"] = sys.modules["jaxlib"] = None
    started = time.perf_counter()
    import numpy as np
    import tensorflow as tf

    imported = time.perf_counter()
    model = tf.saved_model.load(str(folder / "model"))
    test_set = np.load(folder / "test_set.npz")
    result = model.signatures["serving_default"](image=tf.constant(test_set["images"]))
    done = time.perf_counter()
    np.savez(folder / "tensorflow.npz", **{name: value.numpy() for name, value in result.items()})
    print(json.dumps({"import": imported - started, "classify": done - imported}))


# For the reader


def report(folder: Path, console) -> None:
    """Draw some of the digits, and say how many were read right in each framework."""
    import numpy as np

    test_set, ours = np.load(folder / "test_set.npz"), np.load(folder / "tensorflow.npz")
    labels, model = test_set["labels"], folder / "model"
    say = partial(console.print, soft_wrap=True)
    draw(console, test_set["images"][..., 0], labels, ours["label"])
    say()
    for side, predicted in (("JAX", test_set["label"]), ("TensorFlow", ours["label"])):
        right = int((predicted == labels).sum())
        say(f"{side:<12}{right} of {len(labels)} right, {right / len(labels):.1%}")
    difference = np.abs(ours["probability"] - test_set["probability"]).max()
    say(f"greatest difference of a probability: {difference:.1e}")
    say()
    say(f"The model stays in {model}. Look at it:")
    say(f"   [bold]{command()} inspect {model}[/]")
    say(f"   [bold]{command()} inspect {model} --html {folder / 'model.html'}[/]")


def command() -> str:
    """The command of this package, as it can be typed here."""
    installed = Path(sys.executable).with_name("jax-tf-bridge")
    if not installed.is_file():
        return f"{sys.executable} -m bridge"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


def draw(console, images, labels, predicted) -> None:
    """A few scans that were read right, and a wrong one; two characters for a pixel."""
    from rich.columns import Columns
    from rich.text import Text

    right = [index for index in range(len(labels)) if predicted[index] == labels[index]]
    wrong = [index for index in range(len(labels)) if predicted[index] != labels[index]]
    shades = SHADES if console.encoding.startswith("utf") else ASCII_SHADES
    scans = []
    for index in [*right[:SHOWN], *wrong[:1]]:
        rows = ["".join(2 * shades[int(4 * value)] for value in row) for row in images[index]]
        scan = Text("\n".join(rows) + "\n", no_wrap=True)
        if index in wrong:
            scan.append(f"read {predicted[index]}, WRONG: {labels[index]}", "bold red")
        else:
            scan.append(f"read {predicted[index]}", "green")
        scans.append(scan)
    console.print(Columns(scans, padding=(0, 2)))


if __name__ == "__main__":
    main()
