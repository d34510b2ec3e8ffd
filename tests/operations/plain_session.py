"""`python -m tests.operations.plain_session`: SavedModels in sessions, in a process without XLA.

That is what TensorFlow Serving is without `--xla_cpu_compilation_enabled`: the optimizer has its
defaults. Each line that it reads is a folder with `model` and `0.npz` and how many of these there
are; it writes `0.found.npz` beside them, and a line with an error, which is empty if there is none.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

from bridge.core._tf import disable_xla


def run(folder: Path, count: int) -> None:
    """Call a model on all inputs beside it."""
    one_thread = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
    with tf.compat.v1.Session(graph=tf.Graph(), config=one_thread) as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder / "model"))
        definition = graph.signature_def["serving_default"]
        outputs = {name: info.name for name, info in definition.outputs.items()}
        for number in range(count):
            with np.load(folder / f"{number}.npz") as given:
                feeds = {info.name: given[name] for name, info in definition.inputs.items()}
            np.savez(folder / f"{number}.found.npz", **session.run(outputs, feeds))


def main() -> None:
    """Answer each line."""
    disable_xla()
    for line in sys.stdin:
        folder, count = json.loads(line)
        try:
            run(Path(folder), count)
            error = ""
        except Exception as raised:  # noqa: BLE001 - what a server would answer
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps(error), flush=True)


if __name__ == "__main__":
    main()
