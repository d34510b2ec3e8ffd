"""Functions written as LiteRT models, and run against JAX."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bridge
from bridge.litert.runtime import Kernels, Runtime
from bridge.litert.worker_process import LiteRTProcess


def as_model(function: Callable[..., Any], *arrays: Any, outputs: Sequence[str] = ()) -> bytes:
    """Return the model of a function of arrays, with inputs `x0` and so on, and results `y0`."""
    specs = tuple(jax.ShapeDtypeStruct(np.shape(one), np.asarray(one).dtype) for one in arrays)
    count = len(jax.tree.leaves(jax.eval_shape(function, *specs)))
    return bridge.to_litert(
        function,
        args=specs,
        inputs=[f"x{n}" for n in range(len(arrays))],
        outputs=list(outputs) or [f"y{n}" for n in range(count)],
        verify=False,
    )


def run_as_jax(
    process: LiteRTProcess,
    function: Callable[..., Any],
    *arrays: Any,
    kernels: Sequence[Kernels] = ("delegate",),
) -> bytes:
    """Return the model of a function, after kernels have returned what JAX does."""
    model = as_model(function, *arrays)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arrays))]
    for one in kernels:
        with Runtime(model, process=process, kernels=one) as runtime:
            found = runtime.run({f"x{n}": array for n, array in enumerate(arrays)})
        assert list(found) == [f"y{n}" for n in range(len(expected))]
        for got, wanted in zip(found.values(), expected, strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return model


# The runtime for devices, which writes each result to a buffer of its own.
_COMPILED = """
import json, sys
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
model = CompiledModel.from_file(sys.argv[1])
arrays = np.load(sys.argv[2])
sizes = json.loads(sys.argv[3])
for key in sys.argv[4:]:
    index = model.get_signature_index(key)
    names = model.get_signature_by_index(index)
    given, results = model.create_input_buffers(index), model.create_output_buffers(index)
    for name, buffer in zip(names["inputs"], given):
        buffer.write(arrays[name])
    model.run_by_index(index, given, results)
    pairs = zip(names["outputs"], results)
    print(json.dumps({n: b.read(sizes[n], np.float32).tolist() for n, b in pairs if n in sizes}))
"""


def run_compiled(
    path: Path, arrays: Mapping[str, Any], sizes: Mapping[str, int], keys: Sequence[str]
) -> list[dict[str, list[float]]]:
    """Return what a compiled model computes in calls of some signatures, one after the other.

    The results are those of float32 that have a size.
    """
    np.savez(given := path.with_suffix(".npz"), **arrays)
    command = [sys.executable, "-c", _COMPILED, str(path), str(given), json.dumps(sizes), *keys]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
