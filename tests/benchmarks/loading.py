"""Reading files: to the first result, of 4 GB, and calls of what was loaded."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, compare_usage, run_process, seconds

_OURS = """
import sys
import bridge, numpy as np
np.asarray(bridge.load(sys.argv[1])(np.ones((2, int(sys.argv[2])), np.float32)))
"""
_TENSORFLOW = """
import sys
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
model.signatures["serving_default"](x=tf.ones((2, int(sys.argv[2]))))["output_0"].numpy()
"""
# What JAX itself takes where somebody maps the same weights by hand: no loader of it takes less.
_BARE = """
import sys
import jax, jax.numpy as jnp, numpy as np
width, depth = int(sys.argv[2]), int(sys.argv[3])
data = np.memmap(f"{sys.argv[1]}/variables/variables.data-00000-of-00001", np.uint8, "r")
layers = data[: 4 * depth * width**2].view(np.float32).reshape(depth, width, width)
layers = [jax.device_put(layer) for layer in layers]
def run(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer)
    return x
np.asarray(jax.jit(run)(layers, np.ones((2, width), np.float32)))
"""
_LOAD_ALONE = """
import sys, time
import bridge
started = time.process_time()
bridge.load(sys.argv[1])
print(time.process_time() - started)
"""
_ROUNDS = 6


def first_result() -> Iterator[Ratio]:
    """From the start of a process to the first result, against `tf.saved_model.load`."""
    for size, width, depth in (("small", 64, 1), ("400 MB", 5_000, 4)):
        with tempfile.TemporaryDirectory() as folder:
            _write_network(folder, width, depth)
            arguments = (f"{folder}/model", str(width))
            ours = [run_process(_OURS, *arguments) for _ in range(_ROUNDS)][1:]
            peer = [run_process(_TENSORFLOW, *arguments) for _ in range(_ROUNDS)][1:]
            bare = [run_process(_BARE, *arguments, str(depth)) for _ in range(_ROUNDS)][1:]
        name = f"load to first result, {size}: {{}} / tf.saved_model.load"
        yield from compare_usage(name, ours, peer, cpu=1 / 3, memory=1 / 2)
        name = f"load to first result, {size}: {{}} / JAX on weights mapped by hand"
        yield from compare_usage(name, ours, bare, cpu=None, memory=1.15)


def _write_network(folder: str, width: int, depth: int) -> None:
    import jax

    import bridge

    params, _ = models.mlp_data(width, depth)
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"b, {width}"), np.float32)
    exported = jax.export.export(jax.jit(models.mlp))(params, x)
    bridge.save(exported, f"{folder}/model", params=params)


def load_four_gigabytes() -> Iterator[Ratio]:
    """`load` alone: CPU seconds, of one second."""
    with tempfile.TemporaryDirectory() as folder:
        _write_four_gigabytes(Path(folder) / "model")
        times = [_printed(_LOAD_ALONE, f"{folder}/model") for _ in range(_ROUNDS)][1:]
    middle = f"{statistics.median(times):.3g} s"
    yield Ratio("load alone, 4 GB: CPU seconds", tuple(times), 0.1, middle, "1 s")


def _write_four_gigabytes(folder: Path) -> None:
    import jax
    import jax.numpy as jnp

    import bridge

    part = np.zeros((250_000_000,), np.float32)
    params = [part, part, part, part]
    specs = [jax.ShapeDtypeStruct(part.shape, part.dtype)] * len(params)
    exported = jax.export.export(jax.jit(lambda params, x: x + sum(map(jnp.sum, params))))(
        specs, jax.ShapeDtypeStruct((), np.float32)
    )
    bridge.save(exported, folder, params=params)


def _printed(code: str, *arguments: str) -> float:
    """The number that a process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def loaded_calls() -> Iterator[Ratio]:
    """A call of what was loaded, against `jax.jit` of what was exported."""
    import jax

    import bridge

    def timed(action: Callable[[], Any], repeat: int) -> Callable[[], float]:
        return lambda: seconds(lambda: jax.block_until_ready(action()), repeat=repeat)

    for name, function, (params, x), repeat, limit in (
        ("small function", models.mlp, models.mlp_data(4, 1, 4), 2_000, 1.3),
        ("MLP", models.mlp, models.mlp_data(), 40, 1.05),
        ("transformer block", models.transformer_block, models.transformer_data(), 5, 1.05),
    ):
        jitted = jax.jit(function)
        params = jax.device_put(params)
        x = jax.device_put(x)
        with tempfile.TemporaryDirectory() as folder:
            bridge.save(jax.export.export(jitted)(params, x), f"{folder}/model", params=params)
            model = bridge.load(f"{folder}/model")
            np.testing.assert_allclose(model(x), jitted(params, x), rtol=1e-4, atol=1e-4)
            yield compare(
                f"call of a loaded {name} / jax.jit of the original",
                timed(lambda: model(x), repeat),  # noqa: B023 - it is used in this round
                timed(lambda: jitted(params, x), repeat),  # noqa: B023
                limit=limit,
                unit="ms",
                scale=1e3,
                rounds=15,
            )
