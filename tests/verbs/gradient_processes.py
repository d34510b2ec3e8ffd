"""Gradients compared in processes of their own.

TensorFlow keeps what it has compiled for as long as its process lives, some 50 MB for each case,
so a process ends after a few of them. LLVM does not optimize in it, in JAX as in TensorFlow.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import tensorflow as tf

from bridge.testing import assert_gradients_match
from tests.verbs.gradient_functions import CASES, Case
from tests.xla_flags import set_unoptimized

MAX_CASES = 20


class CaseProcess:
    """A process that compares one case at a time, and is a new one after some."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None
        self._cases = 0

    def compare(self, name: str, order: int, modes: Sequence[str]) -> None:
        """Compare a case with JAX, in the modes."""
        if self._executor is None or self._cases == MAX_CASES:
            self.close()
            self._executor, self._cases = _start_process(), 0
        self._cases += 1
        self._executor.submit(compare_by_name, name, order, modes).result()

    def close(self) -> None:
        """End the process."""
        if self._executor is not None:
            self._executor.shutdown()


def _start_process() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_prepare)


def _prepare() -> None:
    warnings.simplefilter("error")
    set_unoptimized()


def compare_by_name(name: str, order: int, modes: Sequence[str]) -> None:
    """Compare one case with JAX, in the modes."""
    (case,) = (case for case in CASES if case.name == name)
    with tf.device("/CPU:0"):
        compare(case, order, modes)


def compare(case: Case, order: int, modes: Sequence[str]) -> None:
    """Compare a case with JAX, in the modes."""
    with case.context():
        assert_gradients_match(
            case.exported(),
            *case.args,
            kwargs=case.kwargs,
            order=order,
            modes=modes,
            reference=case.function,
            variables=case.variables,
        )
