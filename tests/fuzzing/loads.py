"""Loads mutations in a process of its own: `python -m tests.fuzzing.loads FOLDER FIRST LAST`.

A damaged module can end the process that parses it, so the number of each mutation is printed
before it is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bridge
from tests.fuzzing.models import MODELS
from tests.fuzzing.run import run, show


def load_all(folder: Path) -> Any:
    """Return what the functions of a SavedModel are and give, and what `inspect` says."""
    report = bridge.inspect(folder)
    model = bridge.load(folder)
    found = []
    for key, signature in sorted(model.signatures.items()):
        exported = signature.exported
        arguments = {name: _some(spec) for name, spec in signature.inputs.items()}
        found.append(
            (
                key,
                str(exported.in_avals),
                str(exported.out_avals),
                exported.platforms,
                exported.mlir_module_serialized,
                exported.has_vjp(),
                _bytes(signature.params),
                sorted(signature.outputs),
                _bytes(signature(**arguments)),
            )
        )
    return found, sorted((p.name, p.dtype, p.shape) for p in report.parameters)


def _some(spec: Any) -> Any:
    """Values for a spec, where a symbolic dimension is 2."""
    shape = [size if isinstance(size, int) else 2 for size in spec.shape]
    if np.prod(shape) > 1 << 20:
        shape = [min(size, 8) for size in shape]
    return np.ones(shape, spec.dtype)


def _bytes(tree: Any) -> Any:
    return [(np.shape(x), np.asarray(x).tobytes()) for x in jax.tree_util.tree_leaves(tree)]


def _main(folder: Path, first: int, last: int) -> None:
    models = {name: folder / name for name in MODELS}
    seeds = range(first, last)
    ends = run(models, folder / "loads", seeds, load_all, before=lambda n: print(n, flush=True))
    print(show(ends))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
