"""A bar that shows how far something is, on a terminal and when it takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


_SILENT_SECONDS = 2.0


@contextmanager
def progress_bar(what: str, *, unit: str = "") -> Iterator[Callable[[int, int], None] | None]:
    """Return a context with a function that shows progress; None where there is no terminal.

    The bar is on the standard error, appears after two seconds and goes away at the end.
    """
    # Rich would count a file as a terminal, too, when the environment asks for colours.
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what, unit)
    try:
        yield bar.show
    finally:
        bar.close()


class _Bar:
    """The bar, from when it appears; `show` may be called in any thread."""

    __slots__ = ("_lock", "_progress", "_since", "_unit", "_what")

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._progress: Progress | None = None

    def show(self, done: int, total: int) -> None:
        """Show how far it is."""
        with self._lock:
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=done, total=total)
            elif time.monotonic() - self._since >= _SILENT_SECONDS:
                self._progress = _new_progress(self._unit)
                self._progress.add_task(self._what, total=total, completed=done)
                self._progress.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()


def _new_progress(unit: str) -> Progress:
    # Rich takes longer to import than most files to save.
    from rich import progress
    from rich.console import Console

    counts = (
        (progress.MofNCompleteColumn(), progress.TextColumn(unit))
        if unit
        else (progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn())
    )
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *counts,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
