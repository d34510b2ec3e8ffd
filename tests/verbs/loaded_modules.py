"""The imports of a plain call of a verb: `python -m` this FOLDER VERB…, JSON on its output.

Each verb runs in a forked child of a process that has imported JAX, or what else it is preloaded
with, and has used nothing of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import bridge
import bridge.serving

OURS = ("bridge", "savedmodel", "xla_call_module")
WEIGHTS = {"w": np.ones((3, 2), np.float32)}
COMPUTING = ("load", "convert")
ROWS = np.ones((4, 3), np.float32)


def predict(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"])


def command(*arguments: str) -> None:
    from bridge.cli.main import main

    assert main([*arguments]) == 0


def verbs(folder: Path) -> Mapping[str, Callable[[], Any]]:
    """Return a plain call of each verb, of which the first writes what others read."""
    model, options = folder / "model", {"params": WEIGHTS, "args": "f32[b,3]"}
    return {
        "save": lambda: bridge.save(predict, model, **options),
        "load": lambda: bridge.load(model)(ROWS),
        "convert": lambda: bridge.convert(jnp.tanh)(ROWS),
        "to_jax": lambda: bridge.to_jax(model),
        "to_onnx": lambda: bridge.to_onnx(predict, **options),
        "publish": lambda: bridge.serving.publish(predict, folder / "base", **options),
        "jax-tf-bridge inspect": lambda: command("inspect", str(model)),
        "jax-tf-bridge export": lambda: command(
            "export", "jax.numpy:tanh", "--args", "f32[b,3]", "--out", str(folder / "exported")
        ),
    }


def room_of(name: str) -> str:
    """Return the folder of a module of this project; at the root of a package it is itself."""
    module = sys.modules[name]
    folder = name if hasattr(module, "__path__") else name.rpartition(".")[0]
    return name if folder in OURS else folder


def loaded_by(call: Callable[[], Any], *, computes: bool) -> dict[str, list[str]]:
    """Return the rooms that a call imports, and other packages.

    Where it computes something, those that JAX itself imports for that are left out.
    """
    if computes:
        jax.jit(jax.export.export(jax.jit(jnp.tanh))(ROWS).call)(ROWS)
    before = {*sys.modules}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        call()
    new = {*sys.modules} - before
    tops = {name.partition(".")[0] for name in new - {*sys.stdlib_module_names}}
    outside = tops - {*sys.stdlib_module_names, *OURS, *(n.partition(".")[0] for n in before)}
    return {
        "rooms": sorted({room_of(name) for name in new if name.partition(".")[0] in OURS}),
        "outside": sorted(outside),
    }


def in_a_child(call: Callable[[], Any], *, computes: bool) -> dict[str, list[str]]:
    """Return what a call imports in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, json.dumps(loaded_by(call, computes=computes)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    loaded: dict[str, list[str]] = json.loads(text)
    return loaded


if __name__ == "__main__":
    calls = verbs(Path(sys.argv[1]))
    names = sys.argv[2:]
    print(json.dumps({n: in_a_child(calls[n], computes=n in COMPUTING) for n in names}))
