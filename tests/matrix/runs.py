"""The run of the matrix: environments are made, a JAX writes, TensorFlows run."""

from __future__ import annotations

import math
import subprocess
import sys
import time
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
    Ready,
    find_python,
    prepare,
)
from tests.matrix.foreign import foreign_cells
from tests.matrix.grid import Cell, Outcome
from tests.matrix.suite import run_suite
from tests.matrix.written import DEFAULT, Written, read_written

# The name that stands for the files of other programs among those of cases.
FOREIGN = "foreign"
_AT_ONCE = 2  # each process holds TensorFlow or JAX
_LAST_WORDS = 3000  # characters of a process that failed

Step = Callable[[str], None]


def in_each_tensorflow(
    folder: Path, *, only: Sequence[str], names: Sequence[str], step: Step, python: str = ""
) -> list[Cell]:
    """This JAX writes, each TensorFlow runs; so it does with files of other programs.

    What this machine has no Python for is left out; its cell is absent.

    Args:
        folder: for the files.
        only: the releases to run.
        names: of cases, or none for all; `foreign` for the files of other programs.
        step: is told what happens.
        python: the command of the interpreter for environments that it suits.

    Raises:
        EnvironmentFailedError: an environment cannot be made.
    """
    chosen = [consumer for consumer in CONSUMERS if consumer.version in only]
    writer = Ready(metadata.version("jax"), Path(sys.executable))
    cells = [] if names == [FOREIGN] else _in_each(chosen, writer, folder, names, step, python)
    if names and FOREIGN not in names:
        return cells
    consumers, absent = _make(chosen, step, python)
    cells += absent if names else []
    return cells + foreign_cells(folder / FOREIGN, consumers, jax=writer.version, step=step)


def from_each_jax(
    folder: Path, *, only: Sequence[str], names: Sequence[str], step: Step, python: str = ""
) -> list[Cell]:
    """Each other JAX writes, the oldest and the newest TensorFlow run; then the tests run.

    Arguments and exceptions are those of `in_each_tensorflow`. Where `names` are given, the tests
    are left out.
    """
    writers, cells = _make([writer for writer in WRITERS if writer.version in only], step, python)
    for writer in writers:
        cells += _in_each((CONSUMERS[0], CONSUMERS[-1]), writer, folder, names, step)
        if not names:
            cells.append(_test(writer, step))
    return cells


def with_each_jax(*, only: Sequence[str], step: Step, until: float = math.inf) -> list[Cell]:
    """The tests run with each other JAX and the newest TensorFlow.

    Args:
        only: the versions to run.
        step: is told what happens.
        until: when `time.monotonic` says this, no more of them are begun.

    Raises:
        EnvironmentFailedError: an environment cannot be made.
    """
    cells: list[Cell] = []
    for chosen in (writer for writer in WRITERS if writer.version in only):
        # An environment takes minutes to make, too.
        if time.monotonic() >= until:
            name = f"tests with {chosen.name}"
            cells.append(Cell("", "", "", name, Outcome.ABSENT, "no time was left"))
            continue
        made, absent = _make([chosen], step)
        cells += [*absent, *(_test(writer, step) for writer in made)]
    return cells


def _test(writer: Ready, step: Step) -> Cell:
    step(f"the tests run with JAX {writer.version}")
    return run_suite(writer)


def _make(
    wanted: Sequence[Environment], step: Step, python: str = ""
) -> tuple[list[Ready], list[Cell]]:
    """The environments, and a cell for each that this machine has no Python for."""
    ready, absent = [], []
    for environment in wanted:
        step(f"the environment {environment.name}; where it is missing this takes a minute")
        if (found := find_python(environment, wanted=python)) is not None:
            ready.append(prepare(environment, found))
        else:
            message = f"no {' or '.join(environment.pythons)} is on the path"
            absent.append(Cell("", "", "", environment.name, Outcome.ABSENT, message))
    return ready, absent


def _in_each(
    chosen: Sequence[Environment],
    writer: Ready,
    folder: Path,
    names: Sequence[str],
    step: Step,
    python: str = "",
) -> list[Cell]:
    """One JAX writes for each TensorFlow, for the oldest of all, and for none in particular.

    Each TensorFlow runs what is for it, and the other two. Environments are made meanwhile.
    """
    files = folder / writer.version
    targets = dict.fromkeys([CONSUMERS[0].version, *(c.version for c in chosen), DEFAULT])
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(_make, chosen, step, python)
        try:
            written = _write(writer, files, list(targets), names, step)
        except subprocess.CalledProcessError as error:
            made.result()
            return [_dead("writing", writer, error)]
        consumers, absent = made.result()

    def run(consumer: Ready) -> list[Cell]:
        mine = dict.fromkeys([consumer.version, CONSUMERS[0].version, DEFAULT])
        return run_files(
            consumer.python,
            files,
            [entry for target in mine for entry in written if entry.target == target],
            jax=writer.version,
            tensorflow=consumer.version,
            passed=consumer.passed,
            step=step,
        )

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return [*(cell for cells in threads.map(run, consumers) for cell in cells), *absent]


def _write(
    writer: Ready, folder: Path, targets: Sequence[str], names: Sequence[str], step: Step
) -> tuple[Written, ...]:
    step(f"JAX {writer.version} writes")
    folder.mkdir()
    command = [str(writer.python), "-m", "tests.matrix.files", str(folder), *targets]
    subprocess.run(
        [*command, "--cases", *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return read_written(folder)


def _dead(what: str, writer: Ready, error: subprocess.CalledProcessError) -> Cell:
    words = f"exit status {error.returncode}\n{(error.stdout + error.stderr)[-_LAST_WORDS:]}"
    return Cell(writer.version, "", CONSUMERS[-1].version, what, Outcome.DIED, words)
