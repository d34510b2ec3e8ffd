"""A process in which TensorFlow runs trials of a SavedModel, without JAX."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bridge.verifying.trials import Trial, read_results, write_trials
from xla_call_module.dtypes import Array
from xla_call_module.errors import MissingDependencyError, installing

_PROGRAM, _PROBES = "tensorflow_run.py", "tensorflow_probes.py"
_MAX_SILENCE = 600.0  # seconds without a line of output
_MAX_SECONDS = threading.TIMEOUT_MAX
_MAX_LAST_WORDS = 2000  # characters


@dataclass(frozen=True, slots=True)
class TensorFlowRun:
    """The results of trials in TensorFlow.

    Attributes:
        tensorflow: the version of TensorFlow.
        failure: why the file could not be loaded, or how the process ended; empty on success.
        errors: TensorFlow's message for each trial that was run; empty on success.
        results: the arrays by trial, order and name.
        deviations: the names of the known deviations that this TensorFlow has.
        seconds: the seconds that each trial took.
    """

    tensorflow: str
    failure: str = ""
    errors: dict[int, str] = field(default_factory=dict)
    results: dict[tuple[int, int, str], Array] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    seconds: dict[int, float] = field(default_factory=dict)


def run_trials(
    path: str | os.PathLike[str],
    trials: Sequence[Trial],
    *,
    python: str | os.PathLike[str] | None = None,
    silence: float = _MAX_SILENCE,
    limit: float = _MAX_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> TensorFlowRun:
    """Run trials of a SavedModel in TensorFlow."""

    def shown(done: int) -> None:
        if progress is not None:
            progress(done, len(trials))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_trials(folder / "trials.npz", trials)
        lines, status, words = run_program(
            [_PROGRAM, _PROBES],
            [os.path.abspath(path), str(folder / "trials.npz"), str(folder / "results.npz")],
            python=python,
            silence=silence,
            limit=limit,
            shown=shown,
        )
        python = os.fspath(python or sys.executable)
        return _interpret(lines, status, words, python, folder / "results.npz")


def run_program(
    files: Sequence[str],
    arguments: Sequence[str],
    *,
    python: str | os.PathLike[str] | None,
    silence: float = _MAX_SILENCE,
    limit: float = _MAX_SECONDS,
    shown: Callable[[int], None] = lambda _: None,
) -> tuple[list[dict[str, Any]], int, str]:
    """Return the JSON lines that a program of this room writes, its status, and its last words."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        # Python puts a program's folder on the path, and this package has modules with the names
        # of Python's own.
        program, *_ = [shutil.copy(Path(__file__).with_name(file), folder) for file in files]
        command = [os.fspath(python or sys.executable), program, *arguments]
        lines, status = _run(command, errors, silence, limit, shown)
        errors.seek(0)
        return lines, status, errors.read().strip()[-_MAX_LAST_WORDS:]


def _run(
    command: Sequence[str],
    errors: IO[str],
    silence: float,
    limit: float,
    shown: Callable[[int], None],
) -> tuple[list[dict[str, Any]], int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        assert process.stdout is not None
        end = threading.Timer(limit, process.kill)
        end.daemon = True
        end.start()
        lines = []
        for line in json_lines(process, process.stdout, silence):
            lines.append(line)
            if "trial" in line:
                shown(line["trial"] + 1)
        end.cancel()
        return lines, process.wait()


def json_lines(
    process: subprocess.Popen[str], stdout: IO[str], silence: float
) -> Iterator[dict[str, Any]]:
    """Yield the objects that a process writes, one in a line."""
    while True:
        watchdog = threading.Timer(silence, process.kill)
        watchdog.start()
        line = stdout.readline()
        watchdog.cancel()
        if not line.endswith("\n"):
            return
        yield json.loads(line)


def _interpret(
    lines: Sequence[dict[str, Any]], status: int, words: str, python: str, results: Path
) -> TensorFlowRun:
    fields = {key: value for line in lines for key, value in line.items()}
    if "tensorflow" not in fields and status != -signal.SIGKILL:
        # Of a traceback the last line says it.
        said = words.splitlines()[-1] if words.startswith("Traceback") else words
        raise MissingDependencyError(
            f"TensorFlow does not start in {python}: {said or f'exit status {status}'}. To do: "
            f"{installing('tensorflow')}, or name the Python of an environment that has it."
        )
    version = str(fields.get("tensorflow", ""))
    errors = {line["trial"]: line["error"] for line in lines if "trial" in line}
    seconds = {line["trial"]: line["seconds"] for line in lines if "trial" in line}
    if "load_error" in fields:
        return TensorFlowRun(version, failure=f"It cannot be loaded. {fields['load_error']}")
    if "done" not in fields:
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        failure = f"The process ended with {ended} in trial {fields.get('begun', 0)}. {words}"
        return TensorFlowRun(version, failure, errors, seconds=seconds)
    deviations = tuple(fields["deviations"])
    return TensorFlowRun(version, "", errors, read_results(results), deviations, seconds)
