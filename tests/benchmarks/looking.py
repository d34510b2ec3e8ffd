"""Looking at files: what `inspect` of a large one takes."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator

from tests.benchmarks.measure import Ratio, run_process

# In a process of its own: what this one has in memory, the others are counted to have, too.
_WRITE = """
import sys
import bridge, jax, numpy as np
layer = np.zeros((1024, 1024), np.float32)
params = {f"layer{index}": layer for index in range(1000)}
exported = jax.export.export(jax.jit(lambda params, x: x @ params["layer0"]))(
    params, jax.ShapeDtypeStruct((4, 1024), np.float32)
)
bridge.save(exported, sys.argv[1], params=params)
"""
_INSPECT = "import sys; from bridge.cli.main import main; main(['inspect', sys.argv[1]])"


def inspect_large() -> Iterator[Ratio]:
    """4 GB of variables: what the whole command takes."""
    with tempfile.TemporaryDirectory() as folder:
        run_process(_WRITE, f"{folder}/model")
        used = [run_process(_INSPECT, f"{folder}/model", quiet=True) for _ in range(6)][1:]
    for name, field, unit, scale, most in (
        ("CPU time", "cpu", "s", 1.0, 1.0),
        ("peak memory", "memory", "MB", 1e-6, 150e6),
    ):
        values = [getattr(usage, field) for usage in used]
        yield Ratio(
            f"inspect 4 GB, whole process: {name}, in units of {most * scale:.3g} {unit}",
            tuple(value / most for value in values),
            1.0,
            f"{statistics.median(values) * scale:.3g} {unit}",
            f"{most * scale:.3g} {unit}",
        )
