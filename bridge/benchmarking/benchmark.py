"""`benchmark`: one call of a file, in every runtime at hand."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from bridge.benchmarking.benchmark_report import BenchmarkReport, BenchmarkRow
from bridge.core.probes import RANDOM, choose_sizes, draw
from bridge.exporting.exported_file import read_exported
from bridge.formats.file_format import Conversion, FileFormat, Runtime, RuntimeCall
from bridge.formats.format_registry import all_formats, format_of
from bridge.formats.runtime_calls import JAX, RUNTIMES, RuntimeProcess
from bridge.save import save
from bridge.verifying.comparison import greatest_error
from savedmodel.files.folder import bytes_of
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError

_SIZE = 3  # of dimensions that vary
_MAX_DIGITS = 17.0


@dataclass(frozen=True, slots=True)
class _Benched:
    """A call that all runtimes make."""

    path: str
    format: FileFormat
    signature: str
    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]

    @property
    def runtimes(self) -> Collection[Runtime | None]:
        """The runtimes that run it: all where JAX does, or else that of its format."""
        return RUNTIMES.values() if self.format.is_source else (self.format.runtime,)


def benchmark(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    runtimes: Sequence[str] = tuple(RUNTIMES),
    seconds: float = 2.0,
    seed: int = 0,
) -> BenchmarkReport:
    """Return what every runtime at hand needs for one call of a file.

    A SavedModel, a serialized `Exported` or StableHLO is called in JAX, and becomes what each other
    runtime takes in a temporary folder. An ONNX model is called by ONNX Runtime alone, and a LiteRT
    model by LiteRT alone; neither is compared. Each runtime has a process of its own, and one core.
    """
    if unknown := [name for name in runtimes if name not in RUNTIMES]:
        raise StructureError(
            f"runtimes has {unknown[0]!r}; expected some of {', '.join(RUNTIMES)}. To do: name "
            "those."
        )
    with jax.enable_x64(True):  # files have the dtypes that they were exported with
        benched = _benched(os.fspath(path), signature, seed)
    rows: list[BenchmarkRow] = []
    expected: Sequence[Array] | None = None
    for runtime in RUNTIMES.values():
        if runtime not in benched.runtimes or runtime.name not in (*runtimes, JAX.name):
            continue
        row, results = _row(runtime, benched, expected, seconds)
        if runtime is JAX and results:
            expected = results
        if runtime.name in runtimes:
            rows.append(row)
    inputs = tuple(
        f"{name}: {array.dtype.name}[{','.join(map(str, array.shape))}]"
        for name, array in benched.inputs.items()
    )
    return BenchmarkReport(benched.path, benched.signature, inputs, tuple(rows))


def _benched(path: str, signature: str | None, seed: int) -> _Benched:
    format_ = format_of(path)
    runnable = format_.open(path, signature)
    random = np.random.default_rng(seed)
    sizes = choose_sizes(runnable.symbols, _SIZE, runnable.accepts)
    inputs = {
        name: draw(spec, RANDOM, sizes, random)
        for name, spec in runnable.inputs.items()
        if name not in runnable.defaults
    }
    return _Benched(path, format_, runnable.signature, inputs, runnable.outputs)


def _row(
    runtime: Runtime, benched: _Benched, expected: Sequence[Array] | None, seconds: float
) -> tuple[BenchmarkRow, Sequence[Array]]:
    """Return the row of a runtime, and its results."""
    version = runtime.version()
    row = BenchmarkRow(runtime.name, version)
    if not version:
        return replace(row, problem="It is not installed."), ()
    with tempfile.TemporaryDirectory() as folder, RuntimeProcess() as process:
        try:
            path = _file_for(runtime, benched, Path(folder))
            call = RuntimeCall(path, benched.signature, benched.inputs, benched.outputs)
            answer, results = process.call(runtime, call, repeated=seconds)
        except InteropError as error:
            return replace(row, problem=str(error).splitlines()[0]), ()
        compared = results if runtime is JAX else expected
        row = replace(
            row,
            digits=None if compared is None else _right_digits(results, compared),
            bytes=bytes_of(Path(path)) if os.path.isdir(path) else os.path.getsize(path),
            first_call=answer["first_call"],
            latency=answer["latency"],
            memory=answer["memory"],
        )
    return row, results


def _file_for(runtime: Runtime, benched: _Benched, folder: Path) -> str:
    """Return the file that a runtime takes: the one that is benchmarked, or one made of it."""
    if runtime in (JAX, benched.format.runtime):
        return benched.path
    target = next(each for each in all_formats() if each.runtime is runtime)
    path = str(folder / "model")
    if target.convert is None:
        save(read_exported(benched.path, stand_ins=True), path)
        return path
    signatures = (benched.signature,) if os.path.isdir(benched.path) else ()
    target.convert(Conversion(benched.path, path, signatures, options={"no_verify": True}))
    return path


def _right_digits(results: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return to how many decimal digits all results are right; 17 where they are equal."""
    digits = [_MAX_DIGITS]
    for result, wanted in zip(results, expected, strict=True):
        if result.shape != wanted.shape:
            return 0.0
        error = greatest_error(np.asarray(result).astype(wanted.dtype), wanted)
        digits.append(min(_MAX_DIGITS, -math.log10(error)) if error else _MAX_DIGITS)
    return max(0.0, min(digits))
