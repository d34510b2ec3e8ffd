"""Run files in an environment: one process for all of them, a new one after each that dies."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from bridge.verifying.tensorflow_process import json_lines
from tests.matrix.grid import Cell, Outcome
from tests.matrix.written import DEFAULT, VALUES, Written, release_of

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
    passed: Path | None = None,
    step: Callable[[str], None] = lambda _: None,
    consumer: Path = CONSUMER,
    silence: float = SILENCE,
) -> list[Cell]:
    """A cell for each of the files, in their order. Files of the same bytes are run once.

    Args:
        python: the interpreter of an environment with TensorFlow.
        folder: where the files are.
        written: those that this TensorFlow is to run.
        jax: the version that wrote them.
        tensorflow: the release, such as `2.18`.
        passed: the list of what passed in this environment before, and need not run again; what
            passes now is added to it.
        step: is told what happens.
        consumer: the script that runs there.
        silence: after how many seconds without an answer the process is ended.
    """
    answers = {entry.path: answer for entry in written if (answer := unreadable(entry, tensorflow))}
    same: dict[str, list[str]] = {}
    for entry in written:
        if entry.path not in answers:
            same.setdefault(fingerprint(folder, entry.path, consumer), []).append(entry.path)
    before = frozenset() if passed is None or not passed.exists() else _read_passed(passed)
    for digest in before & same.keys():
        answers |= dict.fromkeys(same.pop(digest), (Outcome.PASSED, ""))
    digests = {paths[0]: digest for digest, paths in same.items()}
    command = [str(python), str(consumer), str(folder)]
    for path, outcome, message in consume(command, list(digests), silence=silence):
        answers |= dict.fromkeys(same[digests[path]], (outcome, message))
        if passed is not None and outcome is Outcome.PASSED:
            _add_passed(passed, digests[path])
        step(f"TensorFlow {tensorflow}: {len(answers)} of {len(written)} files")
    return [
        Cell(jax, entry.target, tensorflow, entry.case, *answers[entry.path]) for entry in written
    ]


def fingerprint(folder: Path, path: str, consumer: Path) -> str:
    """A digest of all that the outcome depends on beside the environment."""
    saved = (file for file in (folder / path).rglob("*") if file.is_file())
    digest = hashlib.sha256()
    for file in (consumer, (folder / path).parent / VALUES, *sorted(saved)):
        if file.is_file():
            digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _read_passed(path: Path) -> frozenset[str]:
    return frozenset(path.read_text().split())


def _add_passed(path: Path, digest: str) -> None:
    with path.open("a") as file:
        file.write(digest + "\n")


def unreadable(entry: Written, tensorflow: str) -> tuple[Outcome, str] | None:
    """The answer for what cannot be run, known before it is tried."""
    if entry.error.startswith("VersionError"):
        return Outcome.REFUSED, entry.error
    if entry.error:
        return Outcome.FAILED, f"at save: {entry.error}"
    if release_of(entry.oldest) <= release_of(tensorflow):
        return None
    outcome = Outcome.REFUSED if entry.target == DEFAULT else Outcome.FAILED
    return outcome, f"written for {entry.oldest}"


def consume(command: Sequence[str], paths: Sequence[str], *, silence: float) -> Iterator[Answer]:
    """The answer for each path, as they come."""
    pending = list(paths)
    while pending:
        for answer in _answers(command, tuple(pending), silence):
            pending.remove(answer[0])
            yield answer


def _answers(command: Sequence[str], paths: Sequence[str], silence: float) -> Iterator[Answer]:
    """Return what one process answers, at least one; a path that it dies of is the last."""
    begun: Sequence[str] = paths  # a process that begins nothing would not do better again
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, *paths], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in json_lines(process, process.stdout, silence):
            begun = (line["cell"],)
            if "outcome" in line:
                yield line["cell"], Outcome[line["outcome"].upper()], line["message"]
                begun = ()
        message = f"{_describe(process.wait())} {_last_words(errors)}"
    for path in begun:
        yield path, Outcome.DIED, message


def _describe(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}."


def _last_words(errors: IO[str]) -> str:
    errors.seek(0)
    return errors.read().strip()[-_LAST_WORDS:]
