"""The report of `verify`: the differences of a runtime's results and gradients from JAX's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bridge.core.probes import EDGES, HUGE, INF, NAN
from bridge.verifying.comparison import (
    Tolerance,
    describe_difference,
    describe_overflow,
    greatest_error,
    has_infinity,
    is_finite,
    is_nan,
    is_special,
    largest,
)
from bridge.verifying.tensorflow_process import TensorFlowRun
from bridge.verifying.trials import Trial, as_exact
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError, UnsupportedError
from xla_call_module.tracebacks import warn
from xla_call_module.versions import DEVIATIONS

_OVERFLOWING = (HUGE, INF)
# Kinds of probes at which a difference is no reason to refuse a file of another format: numbers
# that overflow, and what is none.
_EDGES = (*_OVERFLOWING, NAN)
_AT_EDGES = "at NaN, at infinities and where numbers overflow"
# The same of a file that need not be exact.
_LEFT = "at NaN, infinities and huge numbers, which exact=False leaves to the runtime"
_LEFT_OUT = "it did not run, as where an integer is divided by 0, which exact=False leaves to it"
_DESCRIPTIONS = {known.name: known.description for known in DEVIATIONS}
# Those that lose NaN, and change no number.
_EXCUSED = {known.name for known in DEVIATIONS if known.special}


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One call of a signature, or one order of its gradients.

    Attributes:
        signature: the key of the signature.
        inputs: the kind and sizes of the inputs, such as `zeros, b=3`.
        order: the order of the gradient; 0 for the call.
        error: the greatest error of all arrays, relative to the array's largest number.
        problem: the text about differences; empty where there are none.
        known: the text about differences that this TensorFlow is known to have, which are no
            problem; empty where there are none.
    """

    signature: str
    inputs: str
    order: int
    error: float
    problem: str
    known: str = ""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The report of `verify`.

    Attributes:
        path: the folder of the SavedModel, or the file.
        tensorflow: the version of TensorFlow; empty for a file.
        failure: why TensorFlow does not run the file at all; empty if it does.
        rows: the comparisons, in the order of signatures, inputs and orders.
        runtime: the name and version of what was compared with JAX, such as `TensorFlow 2.21.0`.
    """

    path: str
    tensorflow: str
    failure: str
    rows: tuple[VerifyRow, ...]
    runtime: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the results are those of JAX."""
        return not self.failure and not any(row.problem for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields; an infinite error is null."""
        rows = [
            asdict(row) | {"error": row.error if math.isfinite(row.error) else None}
            for row in self.rows
        ]
        return asdict(self) | {"passed": self.passed, "rows": rows}


def compare(
    number: int, trial: Trial, run: TensorFlowRun, tolerance: Tolerance
) -> Sequence[VerifyRow]:
    """Return a row for each order of a trial; one row where TensorFlow did not run it."""
    if (problem := run.errors.get(number, "It was not run.")) or run.failure:
        problem = problem or "Its results are lost."
        return [] if run.failure else [_not_run(trial, problem)]
    results = [
        {name: run.results[number, order, name] for name in expected}
        for order, expected in enumerate(trial.expected)
    ]
    return _compare_orders(trial, results, tolerance, run.deviations)


def as_call(trial: Trial, store: Callable[[Array], Array]) -> Trial:
    """Return a trial without its gradients, for a runtime that only computes outputs."""
    return replace(
        trial,
        inputs={name: store(array) for name, array in trial.inputs.items()},
        cotangents=(),
        expected=({name: store(trial.expected[0][name]) for name in trial.outputs},),
        deviations={},
    )


def trials_of(keys: Sequence[str], trials: Sequence[Trial], *, exact: bool) -> list[Trial]:
    """Return the trials of those signatures that a file has, which need be as exact as it is."""
    found = [trial for trial in trials if trial.signature in keys]
    if not found:
        others = ", ".join(dict.fromkeys(trial.signature for trial in trials)) or "no signature"
        raise StructureError(
            f"The inputs to compare with are of {others}, and the file has the signatures "
            f"{', '.join(keys)}. To do: record those of the same functions."
        )
    return as_exact(found, exact=exact)


def compare_calls(
    trials: Iterable[Trial],
    run: Callable[[Trial], Mapping[str, Array]],
    store: Callable[[Array], Array],
    tolerance: Tolerance,
) -> list[VerifyRow]:
    """Return a row for the call of each trial."""
    rows: list[VerifyRow] = []
    for trial in (as_call(each, store) for each in trials):
        try:
            results = run(trial)
        except InteropError as error:
            rows.append(_not_run(trial, str(error)))
            continue
        if missing := [name for name in trial.outputs if name not in results]:
            problem = f"There is no output {missing[0]}; there are {', '.join(results)}."
            rows.append(_row(trial, 0, math.inf, problem))
            continue
        rows += _compare_orders(trial, [results], tolerance)
    return rows


def is_at_edge(row: VerifyRow) -> bool:
    """Return whether the inputs of a row are NaN, infinities or numbers that overflow."""
    return row.inputs.split(",")[0] in _EDGES


def as_converted(row: VerifyRow) -> VerifyRow:
    """Return the row of a file of another format, with what no conversion refuses as known."""
    is_known = row.problem and is_at_edge(row)
    return replace(row, problem="", known=_AT_EDGES) if is_known else row


def refuse_differences(
    rows: Sequence[VerifyRow],
    sizes: Sequence[Mapping[str, int]],
    *,
    runtime: str,
    first_difference: Callable[[int], str] = lambda _: "",
    unsaid: str = "",
) -> None:
    """Refuse a model that differs from JAX on ordinary numbers; warn of huge and infinite ones."""
    wrong = [row for row in rows if row.problem]
    edges = [row for row in wrong if is_at_edge(row)]
    if ordinary := [row for row in wrong if row not in edges]:
        first = ordinary[0]
        place = first_difference(list(rows).index(first))
        where = f" The first operation that differs is {place}." if place else ""
        raise UnsupportedError(
            f"{runtime} computes something else than JAX: {first.signature} with inputs that are "
            f"{first.inputs}: {first.problem}{where} {len(wrong)} of {len(rows)} probes differ. To "
            f"do: {_constraint(rows, sizes)}leave out of the function what differs; tolerance= "
            "allows more, and verify=False returns the model as it is."
        )
    for row in edges:
        if row.inputs.split(",")[0] != unsaid:
            warn(
                f"{runtime} differs from JAX where inputs are {row.inputs}: {row.signature}: "
                f"{row.problem}"
            )


def _constraint(rows: Sequence[VerifyRow], sizes: Sequence[Mapping[str, int]]) -> str:
    """Return the advice to leave out the least sizes, where the model is right for all others.

    Of these something that is computed may be of size 0, which few kernels of LiteRT take.
    """
    wrong = [at for row, at in zip(rows, sizes, strict=True) if row.problem and at]
    right = [at for row, at in zip(rows, sizes, strict=True) if not row.problem and at]
    for name in right[0] if right else ():
        most = max((at[name] for at in wrong if name in at), default=0)
        if most and all(at.get(name, 0) > most for at in right):
            return f"export it with a constraint such as '{name} >= {most + 1}'; or "
    return ""


def _compare_orders(
    trial: Trial,
    results: Sequence[Mapping[str, Array]],
    tolerance: Tolerance,
    deviations: Sequence[str] = (),
) -> Sequence[VerifyRow]:
    """Return a row for each order, of results by name and the deviations of the runtime."""
    given: list[Array] = [*trial.inputs.values(), *_values(trial.cotangents)]
    rows: list[VerifyRow] = []
    overflowing = trial.kind in _OVERFLOWING or any(map(has_infinity, trial.inputs.values()))
    # Of infinities, differences and products with 0 are NaN.
    special = any(not is_finite(a) for a in trial.inputs.values() if a.dtype.kind in "fcV")
    for order, expected in enumerate(trial.expected):
        # A compiler may simplify infinity times zero to either.
        if overflowing and not all(map(is_finite, given[len(trial.inputs) :])):
            break
        scale = largest(given)
        pairs = {
            name: (_as_promised(trial, results[order][name], wanted), wanted)
            for name, wanted in expected.items()
        }
        problems, known = [], []
        for name, (actual, wanted) in pairs.items():
            differing = functools.partial(
                _difference,
                kind=trial.kind,
                tolerance=tolerance,
                scale=scale,
                precisions=trial.precisions_of(order, name),
            )
            difference = differing(actual, wanted)
            if difference is None:
                continue
            possible = _deviations(trial, order, name, deviations)
            excused = [one for one in possible if one in _EXCUSED]
            everywhere = order > 0 and (special or any(row.known for row in rows))
            rest = actual
            if actual.dtype == wanted.dtype and actual.shape == wanted.shape:
                lost = _lost_nan(trial, actual, wanted, special=special)
                rest = wanted if everywhere else np.where(lost, wanted, actual)
            explained = excused and (order == 0 or everywhere)
            if explained and differing(rest, wanted) is None:
                known += [f"{name}: {_DESCRIPTIONS[deviation]}" for deviation in excused]
            else:
                reasons = [_DESCRIPTIONS[one] for one in possible if one not in _EXCUSED]
                cause = f" (this TensorFlow is known for: {'; '.join(reasons)})" if reasons else ""
                problems.append(f"{name} {difference}{cause}")
        if problems and _may_differ(trial, order):
            problems, known = [], [*known, _LEFT]
        errors = [_error(trial, actual, wanted) for actual, wanted in pairs.values()]
        error = max(errors, default=0.0)
        rows.append(_row(trial, order, error, "; ".join(problems), "; ".join(known)))
        given += expected.values()
    return rows


def _may_differ(trial: Trial, order: int) -> bool:
    """Return whether a file need not compute what JAX does: of what is none, and its gradients."""
    had_nan = order > 0 and any(is_nan(array).any() for array in trial.expected[0].values())
    return not trial.exact and (trial.kind in _EDGES or had_nan)


def _as_promised(trial: Trial, actual: Array, wanted: Array) -> Array:
    """Return results, with JAX's NaN in those of a file that need not have it."""
    is_alike = (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    return actual if trial.exact or not is_alike else np.where(is_nan(wanted), wanted, actual)


def _deviations(trial: Trial, order: int, name: str, of_runtime: Sequence[str]) -> list[str]:
    """Return the deviations of this TensorFlow that may change a result.

    A gradient may have those of any output. Where TensorFlow runs its own operations they are those
    of JAX, which XLA compiles as well.
    """
    names = trial.deviations.get(name, ()) if order == 0 else _values_of(trial.deviations)
    has = _EXCUSED if trial.keeps_nan else of_runtime
    return [deviation for deviation in dict.fromkeys(names) if deviation in has]


def _values_of(deviations: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [name for several in deviations.values() for name in several]


def _lost_nan(trial: Trial, actual: Array, wanted: Array, *, special: bool) -> Array:
    """Return where a NaN that XLA has lost explains that TensorFlow and JAX differ.

    JAX, too, loses NaN in what it compiles, in other places than TensorFlow, so that of inputs that
    are not finite either may have an infinity or NaN where the other has none. TensorFlow's own
    operations keep it.
    """
    lost: Array
    if trial.keeps_nan:
        lost = is_nan(actual) & special
    else:
        lost = is_special(wanted) | is_special(actual) if special else is_nan(wanted)
    return lost


def _difference(
    actual: Array,
    wanted: Array,
    *,
    kind: str,
    tolerance: Tolerance,
    scale: float,
    precisions: Sequence[str],
) -> str | None:
    if kind == HUGE:
        return describe_overflow(actual, wanted)
    return describe_difference(actual, wanted, tolerance, scale=scale, precisions=precisions)


def _error(trial: Trial, actual: Array, wanted: Array) -> float:
    if actual.shape != wanted.shape:
        return math.inf
    if trial.kind == HUGE:
        return 0.0 if describe_overflow(actual, wanted) is None else math.inf
    return greatest_error(actual, wanted)


def _row(trial: Trial, order: int, error: float, problem: str, known: str = "") -> VerifyRow:
    return VerifyRow(trial.signature, trial.title, order, error, problem, known)


def _not_run(trial: Trial, problem: str) -> VerifyRow:
    """Return the row of a trial that the runtime did not run.

    A file that need not be exact may divide an integer by 0 where its inputs are unusual.
    """
    is_left = not trial.exact and trial.kind in EDGES
    return _row(trial, 0, math.inf, *(("", _LEFT_OUT) if is_left else (problem,)))


def _values(by_order: Sequence[Mapping[str, Array]]) -> list[Array]:
    return [array for by_name in by_order for array in by_name.values()]
