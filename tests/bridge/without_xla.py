"""`python -m tests.bridge.without_xla FOLDER`: the files in a folder, in a process without XLA.

That is what TensorFlow Serving is without `--xla_cpu_compilation_enabled`. For each file it prints
what came of calling it, as a line of JSON: the results of the loaded function, of its signature and
of a session, and the gradient of the sum of the squares; of the file and of what TensorFlow has
saved of it again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

from bridge.core._tf import disable_xla

KEY = "serving_default"


def run(path: Path, x: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return what a file computes, by the ways to call it; errors as texts."""
    loaded = tf.saved_model.load(path)
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        y = loaded(tensor)
        loss = tf.reduce_sum(y**2)
    (by_signature,) = loaded.signatures[KEY](x=tensor).values()
    return {
        "eager": y.numpy().tolist(),
        "gradient": tape.gradient(loss, tensor).numpy().tolist(),
        "signature": by_signature.numpy().tolist(),
        "session": _in_session(path, x).tolist(),
    }


def _in_session(path: Path, x: np.ndarray[Any, Any]) -> Any:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        definition = graph.signature_def[KEY]
        (output,) = definition.outputs.values()
        return session.run(output.name, {definition.inputs["x"].name: x})


def main(folder: Path) -> None:
    """Run each file of a folder on the inputs beside them."""
    disable_xla()
    inputs = np.load(folder / "inputs.npz")
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        for name in inputs.files:
            line: dict[str, Any] = {"file": path.name, "input": name}
            try:
                line |= run(path, inputs[name])
                loaded = tf.saved_model.load(path)
                again = folder.with_name("again") / path.name
                tf.saved_model.save(loaded, str(again), signatures=loaded.signatures)
                line["again"] = run(again, inputs[name])
            except Exception as error:  # noqa: BLE001 - what a server would answer
                line["error"] = f"{type(error).__name__}: {error}"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
