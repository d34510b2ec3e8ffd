"""Run files in an environment: one process for all of them, a new one after each that dies."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tests.matrix.grid import Cell, Outcome
from tests.matrix.written import DEFAULT, Written

__all__ = ["run_files"]

CONSUMER = Path(__file__).with_name("consumer.py")
SILENCE = 180.0  # seconds without a word; the import of TensorFlow takes up to 20
_LAST_WORDS = 400  # characters

Answer = tuple[str, Outcome, str]


def run_files(
    python: Path,
    folder: Path,
    written: Sequence[Written],
    *,
    jax: str,
    tensorflow: str,
    step: Callable[[str], None] = lambda _: None,
    consumer: Path = CONSUMER,
    silence: float = SILENCE,
) -> list[Cell]:
    """A cell for each of the files, in their order.

    Args:
        python: the interpreter of an environment with TensorFlow.
        folder: where the files are.
        written: those that this TensorFlow is to run.
        jax: the version that wrote them.
        tensorflow: the release, such as `2.18`.
        step: is told what happens.
        consumer: the script that runs there.
        silence: after how many seconds without an answer the process is ended.
    """
    answers = {entry.path: answer for entry in written if (answer := unreadable(entry, tensorflow))}
    command = [str(python), str(consumer), str(folder)]
    paths = [entry.path for entry in written if entry.path not in answers]
    for path, outcome, message in consume(command, paths, silence=silence):
        answers[path] = outcome, message
        step(f"TensorFlow {tensorflow}: {len(answers)} of {len(written)} files")
    return [
        Cell(jax, entry.target, tensorflow, entry.case, *answers[entry.path]) for entry in written
    ]


def unreadable(entry: Written, tensorflow: str) -> tuple[Outcome, str] | None:
    """The answer for what cannot be run, known before it is tried."""
    if entry.error.startswith("VersionError"):
        return Outcome.REFUSED, entry.error
    if entry.error:
        return Outcome.FAILED, f"at save: {entry.error}"
    if _release(entry.oldest) <= _release(tensorflow):
        return None
    outcome = Outcome.REFUSED if entry.target == DEFAULT else Outcome.FAILED
    return outcome, f"written for {entry.oldest}"


def _release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def consume(command: Sequence[str], paths: Sequence[str], *, silence: float) -> Iterator[Answer]:
    """The answer for each path, as they come."""
    pending = list(paths)
    while pending:
        for answer in _answers(command, tuple(pending), silence):
            pending.remove(answer[0])
            yield answer


def _answers(command: Sequence[str], paths: Sequence[str], silence: float) -> Iterator[Answer]:
    """What one process answers, at least one; a path that it dies of is the last."""
    begun: Sequence[str] = paths  # a process that begins nothing would not do better again
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, *paths], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in _lines(process, process.stdout, silence):
            begun = (line["cell"],)
            if "outcome" in line:
                yield line["cell"], Outcome[line["outcome"].upper()], line["message"]
                begun = ()
        message = f"{_describe(process.wait())} {_last_words(errors)}"
    for path in begun:
        yield path, Outcome.DIED, message


def _lines(
    process: subprocess.Popen[str], stdout: IO[str], silence: float
) -> Iterator[dict[str, Any]]:
    while True:
        watchdog = threading.Timer(silence, process.kill)
        watchdog.start()
        line = stdout.readline()
        watchdog.cancel()
        if not line.endswith("\n"):
            return
        yield json.loads(line)


def _describe(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}."


def _last_words(errors: IO[str]) -> str:
    errors.seek(0)
    return errors.read().strip()[-_LAST_WORDS:]
