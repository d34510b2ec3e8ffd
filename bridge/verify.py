"""`verify`: what a SavedModel computes in TensorFlow is what it computes in JAX."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.comparison import (
    Tolerance,
    describe_difference,
    describe_overflow,
    greatest_error,
    is_finite,
    largest,
)
from bridge.load import load
from bridge.probes import HUGE, INF
from bridge.reference import make_trials
from bridge.tensorflow_process import TensorFlowRun, run_trials
from bridge.trials import Array, Trial, read_trials, write_trials
from xla_call_module.errors import StructureError

__all__ = ["VerifyReport", "VerifyRow", "verify"]

_OVERFLOWING = (HUGE, INF)


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One call of a signature, or one order of its gradients.

    Attributes:
        signature: its key.
        inputs: what they are like, such as `zeros, b=3`.
        order: 0 for the call.
        error: the greatest one of all arrays, as a part of the array's largest number.
        problem: what is wrong; empty if nothing is.
    """

    signature: str
    inputs: str
    order: int
    error: float
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        path: the folder.
        tensorflow: the version that ran it.
        failure: why TensorFlow does not run the file at all; empty if it does.
        rows: in the order of the signatures, inputs and orders.
    """

    path: str
    tensorflow: str
    failure: str
    rows: tuple[VerifyRow, ...]

    @property
    def passed(self) -> bool:
        """Whether TensorFlow computes what JAX does."""
        return not self.failure and not any(row.problem for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields; an infinite error is null."""
        return {
            "path": self.path,
            "tensorflow": self.tensorflow,
            "passed": self.passed,
            "failure": self.failure,
            "rows": [
                {
                    "signature": row.signature,
                    "inputs": row.inputs,
                    "order": row.order,
                    "error": row.error if math.isfinite(row.error) else None,
                    "problem": row.problem,
                }
                for row in self.rows
            ],
        }


def verify(
    path: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    seed: int = 0,
    tolerance: Tolerance | None = None,
) -> VerifyReport:
    """Whether TensorFlow computes of a SavedModel what JAX does, gradients of every order included.

    TensorFlow runs in a process of its own, in which JAX cannot be imported. Each signature is
    called with random inputs, with dimension variables of 1, 3 and 17 or what is nearest to them
    under its constraints, and with zeros, ones, negative, huge and infinite numbers and NaN.
    Gradients are those of random cotangents; a gradient that TensorFlow does not have, because
    nothing depends on an argument, is zeros. Of huge inputs it is compared which results are
    finite; of huge and of infinite ones no gradient is, once something before it is not finite.

    Args:
        path: the folder of a SavedModel that `bridge.load` reads.
        python: the interpreter of another environment with TensorFlow, in which neither JAX nor
            this package need be installed.
        record: a file to be written, with the inputs and what JAX computes, for `against`.
        against: a file that `record` wrote. Then JAX runs nothing, and the SavedModel may be one
            that `bridge.load` does not read, such as what a server has.
        seed: of the random numbers.
        tolerance: what numbers may differ by; by default what is usual for their dtype.

    Raises:
        InteropError: the file is damaged, JAX cannot run it here, or TensorFlow is not installed.
        OSError: a file cannot be read or written.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> bridge.verify("my_model").passed
        True
    """
    if record is not None and against is not None:
        raise StructureError(
            "What is compared with a record cannot be recorded. To do: pass record= or against=."
        )
    trials = make_trials(load(path), seed=seed) if against is None else read_trials(against)
    if record is not None:
        write_trials(record, trials)
    run = run_trials(path, trials, python=python)
    rows = [
        row
        for number, trial in enumerate(trials)
        for row in _compare(number, trial, run, tolerance or Tolerance())
    ]
    return VerifyReport(os.fspath(path), run.tensorflow, run.failure, tuple(rows))


def _compare(
    number: int, trial: Trial, run: TensorFlowRun, tolerance: Tolerance
) -> Sequence[VerifyRow]:
    """A row for each order of a trial; one for all where TensorFlow did not run it."""
    if (problem := run.errors.get(number, "It was not run.")) or run.failure:
        problem = problem or "Its results are lost."
        return [] if run.failure else [_row(trial, 0, math.inf, problem)]
    known: list[Array] = [*trial.inputs.values(), *_values(trial.cotangents)]
    rows = []
    for order, expected in enumerate(trial.expected):
        # What infinity times zero is depends on what a compiler simplifies.
        if trial.kind in _OVERFLOWING and not all(map(is_finite, known[len(trial.inputs) :])):
            break
        scale = largest(known)
        pairs = {name: (run.results[number, order, name], expected[name]) for name in expected}
        problems = [
            f"{name} {difference}"
            for name, (found, wanted) in pairs.items()
            if (difference := _difference(trial, found, wanted, tolerance, scale)) is not None
        ]
        errors = [_error(trial, found, wanted) for found, wanted in pairs.values()]
        rows.append(_row(trial, order, max(errors, default=0.0), "; ".join(problems)))
        known += expected.values()
    return rows


def _difference(
    trial: Trial, found: Array, wanted: Array, tolerance: Tolerance, scale: float
) -> str | None:
    if trial.kind == HUGE:
        return describe_overflow(found, wanted)
    return describe_difference(found, wanted, tolerance, scale=scale)


def _error(trial: Trial, found: Array, wanted: Array) -> float:
    if found.shape != wanted.shape:
        return math.inf
    if trial.kind == HUGE:
        return 0.0 if describe_overflow(found, wanted) is None else math.inf
    return greatest_error(found, wanted)


def _row(trial: Trial, order: int, error: float, problem: str) -> VerifyRow:
    return VerifyRow(trial.signature, trial.title, order, error, problem)


def _values(by_order: Sequence[Mapping[str, Array]]) -> list[Array]:
    return [array for by_name in by_order for array in by_name.values()]
