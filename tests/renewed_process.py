"""A process beside that of the tests, for what TensorFlow keeps until its process ends."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.selecting.executed import PYTEST_VARIABLE


class RenewedProcess:
    """A process that runs one call at a time, and is a new one after some.

    TensorFlow keeps every program that it has compiled, which is 20 to 50 MB for each case of a
    test that compiles many.

    Args:
        max_calls: how many calls one process runs.
        initializer: is called first in each process.
    """

    def __init__(self, max_calls: int, initializer: Callable[[], None] | None = None) -> None:
        self._max_calls, self._initializer = max_calls, initializer
        self._executor: ProcessPoolExecutor | None = None
        self._calls = 0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what the function returns in the process, or raise what it raises."""
        if self._executor is None or self._calls == self._max_calls:
            self.close()
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, context, self._initializer)
            self._calls = 0
        self._calls += 1
        test = os.environ.get(PYTEST_VARIABLE, "")
        return self._executor.submit(_run, test, function, *args).result()

    def close(self) -> None:
        """End the process."""
        if self._executor is not None:
            self._executor.shutdown()


def _run(test: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns, in the process, which says for which test it runs."""
    os.environ[PYTEST_VARIABLE] = test
    return function(*args)
