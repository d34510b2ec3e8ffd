"""Memory and open files over many rounds of save, load, convert and call."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import bridge
from tests.benchmarks.measure import Ratio

_ROUNDS = 2000
_WARM = 200
# What the allocators of three runtimes keep; a context of MLIR for each round would be 2,000 MB.
_GROWTH = 1.15


def rounds(count: int = _ROUNDS) -> Iterator[Ratio]:
    """Resident memory and file descriptors at the end, to those after the first rounds."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_WARM):
            one_round(Path(folder))
        before = _resident(), _descriptors()
        for _ in range(count - _WARM):
            one_round(Path(folder))
        after = _resident(), _descriptors()
    yield Ratio(
        f"resident memory after {count:,} rounds of save, load, convert and call, to {_WARM}",
        (after[0] / before[0],),
        _GROWTH,
        f"{after[0] * 1e-6:.4g} MB",
        f"{before[0] * 1e-6:.4g} MB",
    )
    yield Ratio(
        "the same: open file descriptors",
        (after[1] / before[1],),
        1.0,
        f"{after[1]}",
        f"{before[1]}",
    )


def one_round(folder: Path) -> None:
    """Export, save, load in JAX, call, convert and call in TensorFlow, a new function each time."""
    params = {"w": np.ones((4, 4), np.float32), "b": np.zeros(4, np.float32)}

    def predict(params, x):
        return jnp.tanh(x @ params["w"] + params["b"])

    x = np.ones((2, 4), np.float32)
    exported = jax.export.export(jax.jit(predict))(params, x)
    bridge.save(exported, folder / "model", params=params, overwrite=True)
    expected = bridge.load(folder / "model")(x)
    function = bridge.convert(exported)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        found = function(params, given)
    tape.gradient(found, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    # Both keep what they have compiled, each by a function that will not be seen again.
    jax.clear_caches()


def _resident() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) * 1024


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
