"""Rounds of pytest one after another, of which each begins while one worker of the last still runs.

The workers of a round end when no file is left for them, the last one up to a minute after the
others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

# The folder of a round, in a folder that all of them share.
_VARIABLE = "TESTS_ROUND"
_NEXT = "next"
_POLL_SECONDS = 0.1


def run_rounds(rounds: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> list[int]:
    """Return the statuses of the rounds, each a command and variables of its environment.

    No more than two run at once, and what the later one prints comes after what the former does.
    """
    running: list[subprocess.Popen[bytes]] = []
    printing: list[threading.Thread] = []
    with tempfile.TemporaryDirectory() as shared:
        for number, (command, variables) in enumerate(rounds):
            folder = Path(shared, str(number))
            folder.mkdir()
            for process in running[:-1]:
                process.wait()
            environment = {**os.environ, **variables, _VARIABLE: str(folder)}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            thread = threading.Thread(target=_print_after, args=(process, printing[-1:]))
            thread.start()
            running.append(process)
            printing.append(thread)
            while process.poll() is None and not (folder / _NEXT).exists():
                time.sleep(_POLL_SECONDS)
        for thread in printing:
            thread.join()
        return [process.wait() for process in running]


def _print_after(process: subprocess.Popen[bytes], former: list[threading.Thread]) -> None:
    """Print what a process does, when the former threads have ended."""
    for thread in former:
        thread.join()
    assert process.stdout is not None
    with process.stdout as stream:
        while printed := os.read(stream.fileno(), 1 << 16):
            sys.stdout.buffer.write(printed)
            sys.stdout.flush()


def shared_folder() -> Path | None:
    """Return the folder that the rounds share; a process beside them has none."""
    folder = os.environ.get(_VARIABLE)
    return Path(folder).parent if folder else None


def tell_of_idle_worker(config: pytest.Config) -> None:
    """Have the next round begin if one worker alone has tests left; call it when one has none."""
    workerinput = getattr(config, "workerinput", None)
    if workerinput is None or _VARIABLE not in os.environ:
        return
    folder = Path(os.environ[_VARIABLE])
    (folder / workerinput["workerid"]).touch()
    if len(list(folder.iterdir())) >= workerinput["workercount"] - 1:
        (folder / _NEXT).touch()
