"""`benchmark`: one call of a file, in every runtime at hand."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from bridge.benchmarking.benchmark_report import BenchmarkReport, BenchmarkRow
from bridge.core._jax import enable_x64
from bridge.core.probes import RANDOM, draw
from bridge.core.worker_messages import (
    describe_arrays,
    read_arrays,
    read_message,
    write_message,
)
from bridge.exporting.exported_file import MAX_EXPORTED_BYTES, read_exported
from bridge.litert.conversion import save_litert
from bridge.litert.kept_probes import kept_probes
from bridge.litert.litert_model import bind_signatures
from bridge.litert.metadata import is_model
from bridge.litert.model_verification import make_trials
from bridge.load import load
from bridge.onnx.conversion import save_onnx
from bridge.save import save
from bridge.verifying.comparison import greatest_error
from bridge.verifying.trials import Trial
from savedmodel.files.folder import bytes_of
from savedmodel.files.model_folder import read_file
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import InteropError, StructureError

__all__ = ["RUNTIMES", "benchmark"]

_PROGRAM = "bridge.benchmarking.runtime_calls"
_WHEELS = {
    "JAX": ("jax",),
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "ONNX Runtime": ("onnxruntime",),
    "LiteRT": ("ai-edge-litert",),
}
RUNTIMES = tuple(_WHEELS)
_SIZE = 3  # of dimensions of ONNX that vary
_MAX_DIGITS = 17.0
_MAX_SECONDS = 600.0  # for one runtime


@dataclass(frozen=True, slots=True)
class _Benched:
    """A call that all runtimes make.

    Attributes:
        path: the file.
        signature: the signature.
        inputs: the inputs by name.
        outputs: the names of the outputs.
        expected: the results that are known without JAX; None where there are none.
        only: the only runtime that runs the file; empty for a file of which each gets its own.
    """

    path: str
    signature: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]
    expected: Sequence[Array] | None = None
    only: str = ""


def benchmark(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    runtimes: Sequence[str] = RUNTIMES,
    seconds: float = 2.0,
    seed: int = 0,
) -> BenchmarkReport:
    """Return what every runtime at hand needs for one call of a file.

    A SavedModel, a serialized `Exported` or StableHLO is called in JAX, and becomes what each other
    runtime takes in a temporary folder. An ONNX model is called by ONNX Runtime alone; a LiteRT
    model by LiteRT alone, and compared with the probes that are in it. Each runtime has a process
    of its own, and one core.

    Args:
        path: the folder of a SavedModel, or the file of one of the others.
        signature: the key of a signature; by default the default one, or the only one.
        runtimes: some of `RUNTIMES`.
        seconds: how long calls are repeated in each runtime, at most 200 times.
        seed: the seed of the random inputs.

    Raises:
        InteropError: the file is damaged, or has no such signature.
        OSError: it cannot be read.
    """
    if unknown := [name for name in runtimes if name not in RUNTIMES]:
        raise StructureError(
            f"runtimes has {unknown[0]!r}; expected some of {', '.join(RUNTIMES)}. To do: name "
            "those."
        )
    with enable_x64():  # files have the dtypes that they were exported with
        benched = _benched(os.fspath(path), signature, seed)
    rows: list[BenchmarkRow] = []
    expected = benched.expected
    for runtime in (benched.only,) if benched.only else RUNTIMES:
        if runtime not in (*runtimes, "JAX"):
            continue
        row, results = _row(runtime, benched, expected, seconds)
        if runtime == "JAX" and results:
            expected = results
        if runtime in runtimes:
            rows.append(row)
    inputs = tuple(
        f"{name}: {array.dtype.name}[{','.join(map(str, array.shape))}]"
        for name, array in benched.inputs.items()
    )
    return BenchmarkReport(benched.path, benched.signature, inputs, tuple(rows))


def _benched(path: str, signature: str | None, seed: int) -> _Benched:
    if path.endswith(".tflite"):
        content = read_file(path, limit=MAX_EXPORTED_BYTES)
        trials = kept_probes(content, path) if is_model(content) else ()
        trial = _first(trials, signature, path)
        results = [*trial.expected[0].values()]
        return _Benched(path, trial.signature, trial.inputs, trial.outputs, results, "LiteRT")
    if path.endswith(".onnx"):
        return _of_onnx(path, seed)
    if os.path.isdir(path):
        model = load(path)
        keys = [*model.signatures]
        signature = signature or (keys[0] if len(keys) == 1 else model.default.key)
    bound = bind_signatures(
        path, signatures=signature, params=None, args=None, platform="cpu", order=0,
        inputs=None, outputs=None,
    )  # fmt: skip
    trial = next(iter(make_trials(bound, seed=seed)))
    return _Benched(path, trial.signature, trial.inputs, trial.outputs)


def _first(trials: Sequence[Trial], signature: str | None, path: str) -> Trial:
    keys = list(dict.fromkeys(trial.signature for trial in trials))
    if signature is not None and signature not in keys:
        raise StructureError(
            f"{path} has no probes of a signature {signature!r}; it has those of "
            f"{', '.join(keys) or 'none'}. To do: name one of these."
        )
    return next(trial for trial in trials if trial.signature == (signature or keys[0]))


def _of_onnx(path: str, seed: int) -> _Benched:
    from bridge.onnx.onnx_report import report_of_onnx

    report = report_of_onnx(Path(path))
    assert report.graph is not None
    (signature,) = report.graph.signatures
    random = np.random.default_rng(seed)
    inputs = {}
    for tensor in signature.inputs:
        sizes = [size if isinstance(size, int) else _SIZE for size in tensor.shape or ()]
        dtype = dtype_from_name(tensor.dtype, where=f"The input {tensor.name} of {path}")
        spec = TensorSpec(tuple(sizes), dtype, tensor.name)
        inputs[tensor.name] = draw(spec, RANDOM, {}, random)
    names = tuple(tensor.name for tensor in signature.outputs)
    return _Benched(path, signature.key, inputs, names, only="ONNX Runtime")


def _row(
    runtime: str, benched: _Benched, expected: Sequence[Array] | None, seconds: float
) -> tuple[BenchmarkRow, Sequence[Array]]:
    """Return the row of a runtime, and its results."""
    version = _version(_WHEELS[runtime])
    if not version:
        return BenchmarkRow(runtime, "", problem="It is not installed."), ()
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = _FILES[runtime](benched, Path(folder))
        except InteropError as error:
            return BenchmarkRow(runtime, version, problem=str(error).splitlines()[0]), ()
        answer, results = _measure(runtime, path, benched, seconds)
        if "error" in answer:
            return BenchmarkRow(runtime, version, problem=answer["error"].splitlines()[0]), ()
        compared = results if runtime == "JAX" else expected
        row = BenchmarkRow(
            runtime=runtime,
            version=version,
            digits=None if compared is None else _right_digits(results, compared),
            bytes=bytes_of(Path(path)) if os.path.isdir(path) else os.path.getsize(path),
            first_call=answer["first_call"],
            latency=answer["latency"],
            memory=answer["memory"],
        )
    return row, results


def _version(wheels: Sequence[str]) -> str:
    for wheel in wheels:
        try:
            return metadata.version(wheel)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _itself(benched: _Benched, _: Path) -> str:
    return benched.path


def _as_savedmodel(benched: _Benched, folder: Path) -> str:
    if os.path.isdir(benched.path):
        return benched.path
    save(read_exported(benched.path, stand_ins=True), folder / "model")
    return str(folder / "model")


def _as_onnx(benched: _Benched, folder: Path) -> str:
    if benched.only:
        return benched.path
    source: Any = benched.path
    if os.path.isdir(source):
        source = load(source).signatures[benched.signature]
    save_onnx(source, folder / "model.onnx")
    return str(folder / "model.onnx")


def _as_litert(benched: _Benched, folder: Path) -> str:
    if benched.only:
        return benched.path
    target = folder / "model.tflite"
    save_litert(benched.path, target, signatures=benched.signature, verify=False)
    return str(target)


_FILES: Mapping[str, Callable[[_Benched, Path], str]] = {
    "JAX": _itself,
    "TensorFlow": _as_savedmodel,
    "ONNX Runtime": _as_onnx,
    "LiteRT": _as_litert,
}


def _measure(
    runtime: str, path: str, benched: _Benched, seconds: float
) -> tuple[dict[str, Any], Sequence[Array]]:
    request = {
        "runtime": runtime,
        "path": os.path.abspath(path),
        "signature": benched.signature,
        "inputs": [*benched.inputs],
        "outputs": benched.outputs,
        "seconds": seconds,
        "arrays": describe_arrays(benched.inputs),
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answers:
        write_message(given, request, [*benched.inputs.values()])
        given.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-m", _PROGRAM], stdin=given, stdout=answers,
                stderr=subprocess.DEVNULL, timeout=_MAX_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"It did not answer within {_MAX_SECONDS:g} seconds."}, ()
        answers.seek(0)
        message = read_message(answers)
    if message is None:
        return {"error": f"The process ended with exit status {done.returncode}."}, ()
    answer, parts = message
    return answer, [*read_arrays(answer.get("arrays", []), parts).values()]


def _right_digits(results: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return to how many decimal digits all results are right; 17 where they are equal."""
    digits = [_MAX_DIGITS]
    for result, wanted in zip(results, expected, strict=True):
        if result.shape != wanted.shape:
            return 0.0
        error = greatest_error(np.asarray(result).astype(wanted.dtype), wanted)
        digits.append(min(_MAX_DIGITS, -math.log10(error)) if error else _MAX_DIGITS)
    return max(0.0, min(digits))
