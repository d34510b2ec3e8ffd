"""What the matrix does: environments are made, a JAX writes, TensorFlows run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from tests.matrix.cells import run_files
from tests.matrix.environments import (
    CONSUMERS,
    ROOT,
    WRITERS,
    Environment,
    find_python,
    prepare,
)
from tests.matrix.grid import Cell, Outcome
from tests.matrix.written import DEFAULT, Written, read_written

__all__ = ["Step", "from_each_jax", "in_each_tensorflow"]

TESTS = ("tests/bridge", "tests/savedmodel", "tests/xla_call_module")
_AT_ONCE = 2  # each process holds TensorFlow or JAX
_LAST_WORDS = 3000  # characters of a process that failed

Step = Callable[[str], None]


def in_each_tensorflow(
    folder: Path, *, only: str | None, names: Sequence[str], step: Step
) -> list[Cell]:
    """This JAX writes, each TensorFlow runs.

    Args:
        folder: for the files.
        only: the version of one environment, or None for all.
        names: of cases, or none for all.
        step: is told what happens.

    Raises:
        EnvironmentFailedError: an environment cannot be made.
    """
    chosen = [consumer for consumer in CONSUMERS if only in (None, consumer.version)]
    pythons = [_made(consumer, sys.executable, step) for consumer in chosen]
    jax = metadata.version("jax")
    return _in_each(chosen, pythons, Path(sys.executable), folder, jax, names, step)


def from_each_jax(
    folder: Path, *, only: str | None, names: Sequence[str], step: Step
) -> list[Cell]:
    """Each other JAX writes, the oldest and the newest TensorFlow run; then the tests run.

    Arguments and exceptions are those of `in_each_tensorflow`. Where `names` are given, the tests
    are left out. A JAX for which this machine has no Python is left out; its cell is absent.
    """
    consumers = (CONSUMERS[0], CONSUMERS[-1])
    pythons = [_made(consumer, sys.executable, step) for consumer in consumers]
    cells: list[Cell] = []
    for writer in (writer for writer in WRITERS if only in (None, writer.version)):
        if (python := find_python(writer)) is None:
            cells.append(_absent(writer))
            continue
        own = _made(writer, python, step)
        cells += _in_each(consumers, pythons, own, folder, writer.version, names, step)
        if not names:
            cells.append(_test_packages(own, writer.version, step))
    return cells


def _in_each(
    consumers: Sequence[Environment],
    pythons: Sequence[Path],
    writer: Path,
    folder: Path,
    jax: str,
    names: Sequence[str],
    step: Step,
) -> list[Cell]:
    """One JAX writes for each TensorFlow, and for none in particular; each runs what is for it."""
    targets = [DEFAULT, *(consumer.version for consumer in consumers)]
    try:
        written = _write(writer, folder / jax, targets, jax, names, step)
    except subprocess.CalledProcessError as error:
        return [_dead("writing", jax, error)]

    def run(consumer: Environment, python: Path) -> list[Cell]:
        mine = [entry for target in (consumer.version, DEFAULT)
                for entry in written if entry.target == target]  # fmt: skip
        return run_files(
            python, folder / jax, mine, jax=jax, tensorflow=consumer.version, step=step
        )

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [cell for cells in threads.map(run, consumers, pythons) for cell in cells]


def _made(environment: Environment, python: str, step: Step) -> Path:
    step(f"the environment {environment.name}; where it is missing this takes a minute")
    return prepare(environment, python)


def _write(
    python: Path, folder: Path, targets: Sequence[str], jax: str, names: Sequence[str], step: Step
) -> tuple[Written, ...]:
    step(f"JAX {jax} writes")
    folder.mkdir()
    command = [str(python), "-m", "tests.matrix.files", str(folder), *targets, "--cases", *names]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return read_written(folder)


def _test_packages(python: Path, jax: str, step: Step) -> Cell:
    step(f"the tests run with JAX {jax}")
    command = [str(python), "-m", "pytest", "-q", "-n", str(_AT_ONCE), "--dist", "loadfile", *TESTS]
    try:
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        return _dead("tests", jax, error)
    return Cell(jax, "", CONSUMERS[-1].version, "tests", Outcome.PASSED)


def _dead(what: str, jax: str, error: subprocess.CalledProcessError) -> Cell:
    words = f"exit status {error.returncode}\n{(error.stdout + error.stderr)[-_LAST_WORDS:]}"
    return Cell(jax, "", CONSUMERS[-1].version, what, Outcome.DIED, words)


def _absent(writer: Environment) -> Cell:
    pythons = " or ".join(writer.pythons)
    return Cell(writer.version, "", CONSUMERS[-1].version, "all", Outcome.ABSENT,
                f"no {pythons} is on the path")  # fmt: skip
