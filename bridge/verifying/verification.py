"""What `verify` finds: the differences of TensorFlow's results and gradients from JAX's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.verifying.comparison import (
    Tolerance,
    describe_difference,
    describe_overflow,
    greatest_error,
    is_finite,
    largest,
)
from bridge.verifying.probes import HUGE, INF
from bridge.verifying.tensorflow_process import TensorFlowRun
from bridge.verifying.trials import Array, Trial

__all__ = ["VerifyReport", "VerifyRow", "compare"]

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


def compare(
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
