"""Each verb in a forked child of a process that has used JAX: `python -m` this, JSON on its output.

The argument is a folder for what is written. A child that has not ended in time is ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bridge
from bridge.cli import main as cli

SECONDS = 60


@jax.jit
def inner(x):
    return jnp.where(x > 0, x, jnp.clip(x, -1, 0))


@jax.jit
def function(scale, x):
    """Several functions in one module, which MLIR's threads take one each."""
    return inner(jnp.sin(x) * scale) + jnp.sort(x) + jax.nn.gelu(x) + jnp.linalg.det(x[:3, :3])


SCALE = jnp.arange(3.0)
KEY = jax.random.key(0)
SPECS = (jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((4, 3), np.float32))
ROWS = (SPECS[0], jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), np.float32))


def rows(scale, x):
    return inner(x) * scale


def verbs(folder, exported, symbolic, lowered):
    """Return what the children do, by name."""
    model, module = folder / "model", folder / "module.mlir"
    called, ones = bridge.load(model), jnp.ones((4, 3))
    called(ones)
    module.write_text(str(lowered.compiler_ir("stablehlo")))
    keyed = jax.export.export(jax.jit(lambda key, x: x + jax.random.normal(key)))

    def inspect(option):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            if cli.main(["inspect", str(model), option]):
                raise bridge.InteropError(said.getvalue().strip().partition(": ")[2])

    return {
        "export": lambda: jax.export.export(function)(*SPECS).vjp(),
        "save": lambda: bridge.save(exported, folder / "a", gradient_order=2),
        "save with parameters": lambda: bridge.save(exported, folder / "b", params=SCALE),
        "save of symbolic shapes": lambda: bridge.save(symbolic, folder / "c"),
        "save of keys": lambda: bridge.save(keyed(KEY, SPECS[0]), folder / "d", params=KEY),
        "save of buckets": lambda: bridge.save(symbolic, folder / "e", batch_buckets=[2, 4]),
        "stage": lambda: bridge.exported_from_stage(lowered),
        "trace": lambda: bridge.exported_from_stage(function.trace(*SPECS)).vjp(),
        "load": lambda: bridge.load(model).signatures,
        "gradient": lambda: bridge.load(model).signatures["serving_default"].exported.vjp(),
        "call": lambda: bridge.load(model)(np.ones((4, 3), np.float32)),
        "call of what was called": lambda: called(ones),
        "verify": lambda: bridge.verify(model),
        "inspect": lambda: bridge.inspect(model),
        "inspect --mlir": lambda: inspect("--mlir"),
        "inspect --cost": lambda: inspect("--cost"),
        "to_onnx": lambda: bridge.to_onnx(exported),
        "save_onnx of a module": lambda: bridge.save_onnx(module, folder / "f.onnx"),
        "retarget": lambda: bridge.retarget(exported, "2.18").vjp(),
        "retarget of a file": lambda: bridge.retarget(model, "2.18", to=folder / "g"),
    }


def run(verb, said):
    """The process id of a child that writes how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's, of a fork
        if child := os.fork():
            return child
    text = "right"
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            verb()
    except bridge.InteropError as error:
        text = f"refused: {error}"
    except BaseException:  # noqa: BLE001 - the child ends here
        text = traceback.format_exc()
    said.write_text(text)
    os._exit(0)


def main(folder):
    assert jax.jit(function)(SCALE, np.ones((4, 3), np.float32)).shape == (4, 3)
    exported = jax.export.export(function)(*SPECS)
    symbolic = jax.export.export(jax.jit(rows))(*ROWS)
    bridge.save(exported, folder / "model", params=SCALE)
    running = {}
    lowered = function.lower(*SPECS)
    for number, (name, verb) in enumerate(verbs(folder, exported, symbolic, lowered).items()):
        said = folder / f"said-{number}"
        said.write_text("hung")
        running[run(verb, said)] = name, said
    outcomes = dict(running.values())
    until = time.monotonic() + SECONDS
    while running and time.monotonic() < until:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        running.pop(ended, None)
        time.sleep(0.02)
    for child in running:
        os.kill(child, 9)
    print(json.dumps({name: said.read_text() for name, said in outcomes.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
