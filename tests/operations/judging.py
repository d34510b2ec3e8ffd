"""What became of the cases of a batch in a target: right, refused, or a difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.operations.artifacts import Batch, Call
from tests.operations.case import Case
from tests.operations.operands import Array
from tests.operations.targets import Target
from xla_call_module.errors import InteropError

# Results of few bits are rounded once, whatever they are computed in.
_MOST_ULPS = {"float16": 4.0, "bfloat16": 4.0}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case, and why."""

    case: str
    word: str  # right, refused, raised, absent or differs
    reason: str = ""


def outcomes(target: Target, batch: Batch, folder: Path, whole: str = "") -> Iterator[Outcome]:
    """Yield what became of each case of a batch; if it is refused, of each half of it.

    What raises only with others in one program is no more right for being right alone.

    Args:
        target: the target.
        batch: the batch.
        folder: that of the artifacts.
        whole: what an error says that refuses each case for itself.
    """
    try:
        batch.artifact(folder)
    except Exception as error:  # noqa: BLE001 - a cell of the table
        yield from _apart(target, batch, folder, "absent", error)
        return
    try:
        found = target.run(batch, folder)
    except Exception as error:  # noqa: BLE001 - a cell of the table
        # JAX says NotImplementedError of what has no derivative.
        is_refusal = isinstance(error, InteropError | NotImplementedError)
        word = "refused" if is_refusal else "raised"
        if whole and word == "refused" and whole in str(error):
            yield from (Outcome(case.name, word, str(error)) for case in batch.cases)
            return
        yield from _apart(target, batch, folder, word, error)
        return
    artifact = batch.artifact(folder)
    for place, case in enumerate(batch.cases):
        mine = [n for n, owner in enumerate(artifact.owners) if owner == place]
        faults = [
            f"{call.kind}, result {number}: {fault}"
            for call, results in zip(artifact.calls, found, strict=True)
            for number, n in enumerate(mine)
            if (fault := _fault(target, batch, case, call, n, results[n]))
        ]
        yield Outcome(case.name, "differs" if faults else "right", "; ".join(faults))


def _apart(
    target: Target, batch: Batch, folder: Path, word: str, error: Exception
) -> Iterator[Outcome]:
    if len(batch.cases) == 1:
        yield Outcome(batch.cases[0].name, word, f"{type(error).__name__}: {error}")
        return
    middle = len(batch.cases) // 2
    found: list[Outcome] = []
    for half in (batch.cases[:middle], batch.cases[middle:]):
        found += outcomes(target, Batch(half, batch.form, batch.dtype), folder)
    if word == "raised" and all(one.word == "right" for one in found):
        reason = f"only together: {type(error).__name__}: {error}"
        found = [Outcome(case.name, word, reason) for case in batch.cases]
    yield from found


def _fault(target: Target, batch: Batch, case: Case, call: Call, number: int, found: Array) -> str:
    dtype = "bfloat16" if batch.dtype == "bfloat16" else call.expected[number].dtype.name
    ulps = min(target.ulps, _MOST_ULPS.get(dtype, target.ulps)) * case.loose
    return difference(
        found, call.expected[number], ulps=ulps, dtype=dtype,
        each=case.elementwise and batch.form != "second gradient",
        zeros=target.zeros,
    )  # fmt: skip


def difference(
    found: Array, expected: Array, *, ulps: float, dtype: str, each: bool, zeros: bool = True
) -> str:
    """Return how results differ; nothing if they do not.

    Args:
        found: those of a target.
        expected: JAX's.
        ulps: the allowed difference of floats, in units in the last place.
        dtype: that of which the units are.
        each: whether elements are compared for themselves alone; otherwise relative to the
            largest element.
        zeros: whether their signs of zeros are compared, too.
    """
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
    if found.dtype.kind == "c":
        parts = [np.stack([one.real, one.imag]) for one in (found, expected)]
        return difference(*parts, ulps=ulps, dtype=parts[0].dtype.name, each=each, zeros=zeros)
    if found.dtype.kind in "biu":
        return _worst(found, expected, found != expected)
    info = ml_dtypes.finfo(dtype if found.dtype.name == "float32" else found.dtype)
    with np.errstate(invalid="ignore"):  # of signaling NaNs
        one, other = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    wrong = ~finite & ~((one == other) | (np.isnan(one) & np.isnan(other)))
    sizes = np.abs(np.where(finite, other, 0))
    allowed = ulps * float(info.eps) * (sizes if each else np.max(sizes, initial=0))
    with np.errstate(all="ignore"):
        apart = np.where(finite, np.abs(one - other), 0)
    wrong |= apart > allowed + float(info.smallest_normal)
    if each and zeros:
        wrong |= (one == 0) & (other == 0) & (np.signbit(one) != np.signbit(other))
    return _worst(found, expected, wrong)


def _worst(found: Array, expected: Array, wrong: Array) -> str:
    if not wrong.any():
        return ""
    places = np.flatnonzero(wrong)[:4]
    shown = ", ".join(f"[{n}] {found.ravel()[n]} for {expected.ravel()[n]}" for n in places)
    return f"{np.count_nonzero(wrong)} of {wrong.size}: {shown}"
