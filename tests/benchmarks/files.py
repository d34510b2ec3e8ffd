"""Writing files: whole processes, the save step alone, and importing."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import Ratio, Usage, compare, compare_usage, run_process, seconds

_MODEL = """
import sys
import jax, jax.numpy as jnp, numpy as np
def predict(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])
params = {"w": np.ones((64, 32), np.float32), "b": np.zeros(32, np.float32)}
x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 64"), np.float32)
"""
_OURS = (
    _MODEL
    + """
import bridge
exported = jax.export.export(jax.jit(predict))(params, x)
bridge.save(exported, sys.argv[1], params=params, overwrite=True)
"""
)
# What its users do: gradients in the file, a polymorphic batch, parameters as variables.
_JAX2TF = (
    _MODEL
    + """
import tensorflow as tf
from jax.experimental import jax2tf
converted = jax2tf.convert(predict, polymorphic_shapes=[None, "b, _"], with_gradient=True)
module = tf.Module()
module.params = {name: tf.Variable(value) for name, value in params.items()}
module.f = tf.function(
    lambda x: converted(dict(module.params), x),
    autograph=False,
    input_signature=[tf.TensorSpec([None, 64], tf.float32)],
)
options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": module.f}, options=options)
"""
)

# One array stands for the weights of all layers, as what is written is what counts.
_NEW_WEIGHTS = """
import os, shutil, sys, time
import jax, jax.numpy as jnp, numpy as np
import bridge
folder, size, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
depth, width = 48, 1024
rows = size // (4 * depth * width)
value = np.random.default_rng(0).integers(0, 1 << 20, (rows, width), np.int32).view(np.float32)
layers = [{"up": value, "bias": np.zeros(width, np.float32)} for _ in range(depth)]
def predict(layers, x):
    for layer in layers:
        h = jax.nn.gelu(x @ layer["up"] + layer["bias"])
        h = (h - h.mean(-1, keepdims=True)) / (h.std(-1, keepdims=True) + 1e-6)
        x = x + h.sum(-1, keepdims=True)
    return x
new = os.path.join(folder, "new")
shutil.rmtree(new, ignore_errors=True)
os.sync()
started = time.perf_counter()
if way == "all":
    bridge.update(os.path.join(folder, "first"), layers, to=new)
elif way == "part":
    bridge.update(os.path.join(folder, "first"), [None] * (depth - 1) + [layers[-1]], to=new)
else:
    path = os.path.join(folder, "first") if way == "first" else new
    bridge.save(predict, path, params=layers, args=f"f32[b,{rows}]", num_shards=8)
with open(os.path.join(folder, "seconds"), "w") as file:
    file.write(str(time.perf_counter() - started))
"""


def whole_process() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        ours = [run_process(_OURS, f"{folder}/ours") for _ in range(6)][1:]
        peer = [run_process(_JAX2TF, f"{folder}/peer") for _ in range(6)][1:]
    name = "export and save, whole process: {} / jax2tf"
    yield from compare_usage(name, ours, peer, cpu=1 / 4, memory=1 / 3)


def save_step() -> Iterator[Ratio]:
    """400 MB of parameters: the step that writes, against TensorFlow's and against the disk."""
    import jax
    import tensorflow as tf

    import bridge

    params = {f"w{index}": np.full((10_000, 1_000), index, np.float32) for index in range(10)}
    exported = jax.export.export(jax.jit(lambda params, x: x @ params["w0"]))(
        params, jax.ShapeDtypeStruct((1, 10_000), np.float32)
    )
    module = tf.Module()
    module.params = {name: tf.Variable(value) for name, value in params.items()}
    module.f = tf.function(
        lambda x: tf.matmul(x, module.params["w0"]),
        input_signature=[tf.TensorSpec([1, 10_000], tf.float32)],
    )
    module.f.get_concrete_function()
    whole = memoryview(np.zeros(400_000_000, np.uint8))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def timed(action: Any, target: Path) -> float:
            elapsed = seconds(action)
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            return elapsed

        def ours() -> float:
            return timed(
                lambda: bridge.save(exported, folder / "ours", params=params), folder / "ours"
            )

        def theirs() -> float:
            return timed(lambda: tf.saved_model.save(module, f"{name}/peer"), folder / "peer")

        def plain() -> float:
            return timed(lambda: _write(folder / "plain", whole), folder / "plain")

        yield compare("save 400 MB / tf.saved_model.save", ours, theirs, limit=1.0, unit="s")
        yield compare("save 400 MB / write and fsync", ours, plain, limit=1.5, unit="s")


def save_in_shards(size: int = 4 << 30, folder: str | None = None) -> Iterator[Ratio]:
    """4 GB of parameters in 8 data files, which threads write, against one.

    Args:
        size: bytes of the parameters.
        folder: where to write; by default where temporary files are.
    """
    import jax

    import bridge

    # One array stands for all, as what is written is what counts.
    value = np.random.default_rng(0).integers(0, 1 << 30, (size // 64, 2), np.int32)
    params = {f"w{index}": value for index in range(8)}
    exported = jax.export.export(jax.jit(lambda params, x: x + params["w0"][0]))(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params),
        jax.ShapeDtypeStruct((2,), np.int32),
    )
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name) / "model"

        def timed(num_shards: int) -> float:
            elapsed = seconds(
                lambda: bridge.save(exported, path, params=params, num_shards=num_shards)
            )
            shutil.rmtree(path)
            return elapsed

        yield compare(
            f"save {size / 1e9:.3g} GB in 8 data files / in one",
            lambda: timed(8),
            lambda: timed(1),
            limit=None,
            unit="s",
            rounds=3,
        )


def new_weights(size: int = 1 << 30, folder: str | None = None) -> Iterator[Ratio]:
    """New weights for a network of 48 layers, against exporting and saving it again.

    Args:
        size: bytes of the parameters.
        folder: where to write; by default where temporary files are.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        run_process(_NEW_WEIGHTS, name, str(size), "first")
        times: dict[str, list[float]] = {way: [] for way in ("all", "part", "again")}
        usages: dict[str, list[Usage]] = {way: [] for way in times}
        for _ in range(4):
            for way in times:
                usages[way].append(run_process(_NEW_WEIGHTS, name, str(size), way))
                times[way].append(float((Path(name) / "seconds").read_text()))
    scale = f"{size / 1e9:.3g} GB"
    for way, what in (("all", "all"), ("part", "a 48th")):
        ours, peer = (statistics.median(times[side][1:]) for side in (way, "again"))
        pairs = zip(times[way][1:], times["again"][1:], strict=True)
        yield Ratio(
            f"update {what} of {scale} / export and save again",
            tuple(mine / theirs for mine, theirs in pairs),
            1.0,
            f"{ours:.3g} s",
            f"{peer:.3g} s",
        )
    yield from compare_usage(
        f"update all of {scale} / export and save again: {{}}",
        usages["all"][1:],
        usages["again"][1:],
        cpu=None,
        memory=1.1,
    )


def import_time() -> Iterator[Ratio]:
    """Importing the package over importing JAX, CPU seconds; 0.2 s are allowed on top."""
    both = [
        (run_process("import jax, bridge").cpu, run_process("import jax").cpu) for _ in range(7)
    ][1:]
    added = [mine - theirs for mine, theirs in both]
    yield Ratio(
        "import bridge, added to import jax, in units of 0.2 s",
        tuple(value / 0.2 for value in added),
        1.0,
        f"{statistics.median(added):.3g} s",
        "0.2 s",
    )


def _write(path: Path, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
