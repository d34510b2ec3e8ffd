"""`python tests/benchmarks/digits.py FOLDER`: what saving the network of the demo takes.

It prints the seconds of `bridge.save` and of jax2tf with `tf.saved_model.save`, each in a process
that has called the network in JAX and has imported nothing else. Users of jax2tf have to import
TensorFlow, which is a part of what they wait for.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEMO = Path(__file__).parents[2] / "examples" / "digits.py"


def main(folder: str) -> None:
    if importlib.util.find_spec("jax.experimental.jax2tf") is None:
        print("null")
        return
    seconds = {}
    for name in ("bridge", "jax2tf"):
        command = [sys.executable, __file__, folder, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds[name] = float(done.stdout.splitlines()[-1])
    print(json.dumps(seconds))


def measure(name: str, folder: str) -> float:
    """The seconds from a network in JAX to a SavedModel."""
    import jax
    import jax.numpy as jnp

    init, predict = runpy.run_path(str(DEMO))["network"]()
    params = init(jax.random.key(0))
    jax.jit(predict)(params, jnp.zeros((1, 8, 8, 1)))
    started = time.perf_counter()
    save = _save_with_jax2tf if name == "jax2tf" else _save
    save(predict, params, f"{folder}/benchmark")
    return time.perf_counter() - started


def _save(predict: Any, params: Any, folder: str) -> None:
    import jax.export

    import bridge

    batch = jax.export.symbolic_shape("batch, 8, 8, 1")
    exported = jax.export.export(jax.jit(predict), platforms=["cpu", "cuda", "tpu"])(
        params, jax.ShapeDtypeStruct(batch, "float32")
    )
    bridge.save(exported, folder, params=params, overwrite=True)


def _save_with_jax2tf(predict: Any, params: Any, folder: str) -> None:
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf

    converted = jax2tf.convert(
        predict,
        polymorphic_shapes=[None, "batch, 8, 8, 1"],
        native_serialization_platforms=("cpu", "cuda", "tpu"),
    )
    module = tf.Module()
    module.params = jax.tree.map(tf.Variable, params)
    module.f = tf.function(
        lambda image: converted(jax.tree.map(tf.convert_to_tensor, dict(module.params)), image),
        autograph=False,
        input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32)],
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    signatures = {"serving_default": module.f}
    tf.saved_model.save(module, folder, signatures=signatures, options=options)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(measure(sys.argv[2], sys.argv[1]))
    else:
        main(sys.argv[1])
