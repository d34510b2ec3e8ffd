"""An ONNX model is run by ONNX Runtime, in a process of its own, and compared with JAX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bridge.core.narrow_types import storage_dtype_of
from bridge.core.narrowing import x64_if_needed
from bridge.formats.file_format import RuntimeCall
from bridge.formats.runtime_calls import RUNTIMES, RuntimeProcess
from bridge.sources.bound_call import BoundCall
from bridge.verifying.bound_trials import make_trials
from bridge.verifying.comparison import Tolerance
from bridge.verifying.trials import Trial
from bridge.verifying.verification import VerifyRow, compare_calls, refuse_differences
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.dtypes import Array
from xla_call_module.errors import MissingDependencyError, UnsupportedError

_RUNTIME = RUNTIMES["ONNX Runtime"]
# ONNX Runtime takes no arrays of these from Python, and returns none.
_NOT_IN_PYTHON = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def verify_onnx(
    bound: BoundCall, path: Path, tolerance: Tolerance | None, *, exact: bool = True
) -> None:
    """Compare a file with the call that it was made of."""
    if not _RUNTIME.version():
        raise MissingDependencyError(
            "verify=True needs onnxruntime, which is not installed. To do: pip install "
            "onnxruntime, or leave verify out."
        )
    call = bound.original
    dtypes = [spec.dtype.name for spec in (*call.args, *call.results)]
    passed = [call.args[index].dtype.name for index in bound.inputs]
    returned = [spec.dtype.name for spec in call.results]
    if found := [name for name in (*passed, *returned) if name in _NOT_IN_PYTHON]:
        raise UnsupportedError(
            f"verify=True: {call.name} takes or returns {found[0]}, of which ONNX Runtime takes "
            "and returns no arrays in Python. To do: cast inside of the function, or leave verify "
            "out."
        )
    with x64_if_needed(dtypes):
        trials = list(make_trials({call.name: bound}, exact=exact))
    rows = compare_onnx(path, trials, tolerance or Tolerance())
    refuse_differences(rows, [trial.sizes for trial in trials], runtime=_RUNTIME.name)


def compare_onnx(
    path: str | os.PathLike[str], trials: Sequence[Trial], tolerance: Tolerance
) -> list[VerifyRow]:
    """Return a row for each trial of the function in a file."""
    with RuntimeProcess() as process:

        def run(trial: Trial) -> dict[str, Array]:
            file = RuntimeCall(os.fspath(path), DEFAULT_SIGNATURE, trial.inputs, trial.outputs)
            _, results = process.call(_RUNTIME, file)
            return dict(zip(trial.outputs, results, strict=False))

        return compare_calls(trials, run, _at_boundary, tolerance)


def _at_boundary(array: Array) -> Array:
    """Return an array as a model takes or returns it: complex numbers are pairs of floats."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    stored = storage_dtype_of(array.dtype)
    return array if stored is None else array.astype(stored)
