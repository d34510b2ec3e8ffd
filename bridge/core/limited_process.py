"""A process that answers requests, and is ended when it takes too long."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bridge.core.worker_messages import read_message, write_message

_MAX_SECONDS = 1800.0  # for one request
_MAX_LAST_WORDS = 2000  # characters
# What the libraries say that is no error: https://abseil.io/docs/cpp/guides/logging.
_NOISE = re.compile(r"^(?:[IW]\d{4} |INFO: |WARNING: |\s*$)")


class ProcessDeath(Exception):  # noqa: N818 - the process made the error
    """The process ended, or was killed for its silence, before it answered; with why."""


class WorkerProcess:
    """A process that answers requests, started with the first one and again after a death.

    It is a context manager.

    Attributes:
        starts: how often the process was started. What was loaded before is gone after a start.
    """

    def __init__(self, *, seconds: float = _MAX_SECONDS) -> None:
        """Start nothing yet."""
        self.starts = 0
        self._seconds = seconds
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process, and remove its folder."""
        self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _command(self, folder: Path) -> list[str]:
        """Return the command of the program."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process unless it runs."""
        if self._process is not None:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command(Path(self._folder.name)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.starts += 1

    def request(
        self, verb: str, parts: Sequence[Any] = (), *, seconds: float | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer to a request."""
        self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        begun = self._errors.stat().st_size
        limit = self._seconds if seconds is None else seconds
        watchdog = threading.Timer(limit, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            write_message(process.stdin, {"verb": verb, **options}, parts)
            answer = read_message(process.stdout)
        except OSError:
            answer = None
        finally:
            is_late = watchdog.finished.is_set()
            watchdog.cancel()
        if answer is None:
            raise ProcessDeath(self._last_words(begun, limit if is_late else 0.0))
        return answer

    @property
    def _errors(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name, "errors.txt")

    def _last_words(self, begun: int, limit: float) -> str:
        """Return how the process ended, after a time limit or with what it said since a place."""
        status = self._end()
        if limit:
            return f"it did not answer within {limit:g} seconds"
        said = self._errors.read_bytes()[begun:].decode(errors="replace").splitlines()
        words = "\n".join(line for line in said if not _NOISE.match(line))[-_MAX_LAST_WORDS:]
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"the process ended with {ended}{f': {words}' if words else ''}"

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            # Of what could not be written, because the process had ended.
            with contextlib.suppress(OSError):
                stream.close()
        try:
            return process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
