"""Gradients compared in processes of their own, in which LLVM does not optimize."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import tensorflow as tf

from bridge.testing import assert_gradients_match
from tests.verbs.gradient_functions import CASES, Case
from tests.xla_flags import set_unoptimized

MAX_CASES = 40


def prepare() -> None:
    """Prepare a process for comparisons."""
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
