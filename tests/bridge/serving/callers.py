"""Threads that call a model at once, for as long as they are told, and what that leaves behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.bridge.serving import served

THREADS = 8
BATCHES = (1, 2, 5, 32)
REQUESTS = [(key, batch) for key in served.KEYS for batch in BATCHES]
# What the resident memory may grow by once all programs are compiled: the C library keeps what
# threads have freed. In a minute there are some hundred thousand requests.
GROWTH = 8 << 20
# Two XLA versions, of which the second one has other polynomials for tanh and exp.
_TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

# A signature and a batch size -> the outputs by name.
_Call = Callable[[str, int], Mapping[str, np.ndarray[Any, Any]]]


def agree(answers: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """The answers to all requests are what JAX computes."""
    assert answers.keys() == set(REQUESTS)
    for (key, batch), results in answers.items():
        want = served.expected(key, batch)
        assert results.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(results[name], value, **_TOLERANCE)


class Callers:
    """Threads that send every request in turn; each answer has to be the first one's bits.

    Attributes:
        answers: the first ones.
        failures: what threads ended with.
        answered: how many answers there were.
        growth: by how many bytes the resident memory grew while nothing was compiled.
    """

    def __init__(self, calls: Sequence[_Call], *, process: int | str = "self") -> None:
        """Take over.

        Args:
            calls: what each of the threads calls, taken in turn.
            process: whose memory is measured.
        """
        self._calls = calls
        self._process = process
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._first: dict[Any, Any] = {}
        self.answers: dict[Any, Any] = {}
        self.failures: list[BaseException] = []
        self.answered = 0
        self.growth = 0

    def run(self, seconds: float) -> None:
        """Let them call until all programs are compiled, and for some seconds more."""
        threads = [threading.Thread(target=self._send_all, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        while len(self.answers) < len(REQUESTS) and not self.failures:
            time.sleep(0.01)
        time.sleep(1)
        warm = self._resident()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        self.growth = self._resident() - warm

    def _resident(self) -> int:
        with open(f"/proc/{self._process}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def _send_all(self, first: int) -> None:
        answered, call = 0, self._calls[first % len(self._calls)]
        try:
            while not self._stop.is_set():
                request = REQUESTS[(first + answered) % len(REQUESTS)]
                self._judge((first % len(self._calls), *request), call(*request))
                answered += 1
        except BaseException as error:  # noqa: BLE001 - of any kind: the test reports it
            self.failures.append(error)
            self._stop.set()
        with self._lock:
            self.answered += answered

    def _judge(self, request: tuple[int, str, int], results: Mapping[str, Any]) -> None:
        with self._lock:
            before = self._first.setdefault(request, results)
            self.answers.setdefault(request[1:], results)
        for name, value in before.items():
            assert value.tobytes() == results[name].tobytes(), (request, name)
