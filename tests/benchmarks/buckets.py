"""Requests of many sizes, with batches padded to a few of them and without."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio

# The first pass compiles what it meets; in the others every program is there.
_REQUESTS = """
import sys, time
import numpy as np, tensorflow as tf
call = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
sizes = np.random.default_rng(0).permutation(128)[:100] + 1
requests = [tf.ones((size, int(sys.argv[2]))) for size in sizes]
for _ in range(3):
    started = time.perf_counter()
    for request in requests:
        call(x=request)["output_0"].numpy()
    print(time.perf_counter() - started)
"""
_WIDTH = 512
_ROUNDS = 3


def batch_buckets() -> Iterator[Ratio]:
    """100 requests of different sizes up to 128, each time in a new process."""
    import jax

    import bridge

    params, _ = models.mlp_data(_WIDTH)
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"b, {_WIDTH}"), "float32")
    exported = jax.export.export(jax.jit(models.mlp))(params, x)
    with tempfile.TemporaryDirectory() as folder:
        bridge.save(exported, f"{folder}/ours", params=params, batch_buckets=(1, 8, 32, 128))
        bridge.save(exported, f"{folder}/peer", params=params)
        ours, peer = [], []
        for _ in range(_ROUNDS):
            ours.append(_run(f"{folder}/ours"))
            peer.append(_run(f"{folder}/peer"))
    for what, number, limit in (("first", 0, 1 / 5), ("again", -1, None)):
        mine, theirs = ([run[number] for run in runs] for runs in (ours, peer))
        yield Ratio(
            f"100 sizes of batches, {what}: batch_buckets / none",
            tuple(a / b for a, b in zip(mine, theirs, strict=True)),
            limit,
            f"{statistics.median(mine):.3g} s",
            f"{statistics.median(theirs):.3g} s",
        )


def _run(folder: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _REQUESTS, folder, str(_WIDTH)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(line) for line in done.stdout.split()]
