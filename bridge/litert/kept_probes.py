"""The probes that a LiteRT model was verified with, kept in it, so that it can be verified again.

They are a file of trials (`bridge.verifying.trials`) in an entry of the model's metadata: inputs,
and what JAX computed of them. Other entries have the error that a quantized model may have, and the
tolerance that a user allowed.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bridge.litert.metadata import add_entry, read_entry
from bridge.litert.model_verification import compare_model
from bridge.litert.worker_process import LiteRTProcess
from bridge.verifying.comparison import Tolerance
from bridge.verifying.trials import Trial, read_trials, write_trials
from bridge.verifying.verification import VerifyRow
from xla_call_module.errors import FormatError, StructureError

__all__ = ["compare_kept", "keep_probes", "kept_error", "kept_probes", "probe_bytes"]

_PROBES, _ERROR = "jax_tf_bridge.probes", "jax_tf_bridge.quantization_error"
_TOLERANCE = "jax_tf_bridge.tolerance"
# The arrays of the probes: an eighth of the model, and at least a few kilobytes.
MAX_KEPT_BYTES, _MIN_KEPT_BYTES, _PART = 1 << 20, 1 << 13, 8
_ENTRY_BYTES = 384  # that an array takes in an .npz file besides its elements
# A quantized model on another machine: its kernels round elsewhere.
_MARGIN = 2.0


def keep_probes(
    model: bytes,
    trials: Sequence[Trial],
    *,
    error: float | None = None,
    tolerance: Tolerance | None = None,
) -> bytes:
    """Return a model with as many of the trials as fit, of each signature the first one first.

    They fit into an eighth of its size, 8 KiB at least and a mebibyte at most. Where none does, the
    smallest one is there, unless it is larger than a mebibyte. Of steps that follow one another
    as many are there as a mebibyte takes.

    Args:
        model: the model.
        trials: the trials of its signatures.
        error: the greatest error of a quantized model; None for others.
        tolerance: the difference that was allowed; None for the usual one.
    """
    if error is not None:
        model = add_entry(model, _ERROR, repr(error).encode())
    if tolerance is not None:
        model = add_entry(model, _TOLERANCE, json.dumps(asdict(tolerance)).encode())
    kept = _fitting(trials, min(MAX_KEPT_BYTES, max(_MIN_KEPT_BYTES, len(model) // _PART)))
    if not kept:
        return model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probes.npz")
        write_trials(path, kept)
        return add_entry(model, _PROBES, path.read_bytes())


def _fitting(trials: Sequence[Trial], room: int) -> list[Trial]:
    """Return trials, of each signature one before the second of any.

    Steps that follow one another stay together, as many of them as a mebibyte takes: the later ones
    alone tell whether a model remembers.
    """
    runs: list[list[Trial]] = []
    for trial in trials:
        if trial.step > 1 and runs:
            runs[-1].append(trial)
        else:
            runs.append([trial])
    for run in runs:
        while len(run) > 1 and _bytes_of_run(run) > MAX_KEPT_BYTES:
            run.pop()
    places: dict[str, int] = {}
    ordered = []
    for number, run in enumerate(runs):
        key = run[0].signature
        places[key] = places.get(key, 0) + 1
        ordered.append((places[key], number, run))
    kept: list[Trial] = []
    for _, _, run in sorted(ordered, key=lambda item: item[:2]):
        size = _bytes_of_run(run)
        if len(run) > 1 or size <= room:
            kept += run
            room -= size
    smallest = min(runs, key=_bytes_of_run, default=[])
    return kept or (smallest if _bytes_of_run(smallest) <= MAX_KEPT_BYTES else [])


def _bytes_of_run(run: Sequence[Trial]) -> int:
    return sum(map(_bytes_of, run))


def _bytes_of(trial: Trial) -> int:
    arrays = [*trial.inputs.values(), *(a for outputs in trial.expected for a in outputs.values())]
    return sum(array.nbytes + _ENTRY_BYTES for array in arrays)


def kept_probes(model: bytes, name: str) -> tuple[Trial, ...]:
    """Return the probes in a model.

    Args:
        model: the model.
        name: the name of its file, for messages.

    Raises:
        StructureError: it has none.
        FormatError: it is no model, or is damaged.
    """
    content = read_entry(model, _PROBES)
    if content is None:
        raise StructureError(
            f"{name} has no probes: it was written with verify=False, by another program, or its "
            "arrays are too large. To do: pass against=, a file that was recorded."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probes.npz")
        path.write_bytes(content)
        return read_trials(path)


def probe_bytes(model: bytes) -> int:
    """Return how many bytes of a model are probes."""
    return len(read_entry(model, _PROBES) or b"")


def kept_error(model: bytes) -> float | None:
    """Return the error that a quantized model had; None for a model that is not quantized.

    Raises:
        FormatError: it is no model, or is damaged.
    """
    text = read_entry(model, _ERROR)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise FormatError(f"The error in the model is {text!r}. To do: write it again.") from error


def kept_tolerance(model: bytes) -> Tolerance | None:
    """Return the difference that a user allowed in a model; None for the usual one.

    Raises:
        FormatError: it is no model, or is damaged.
    """
    text = read_entry(model, _TOLERANCE)
    try:
        return None if text is None else Tolerance(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise FormatError(
            f"The tolerance in the model is {text!r}. To do: write it again."
        ) from error


def compare_kept(
    model: bytes,
    trials: Sequence[Trial],
    tolerance: Tolerance | None = None,
    *,
    process: LiteRTProcess | None = None,
) -> list[VerifyRow]:
    """Return the rows of `compare_model`; those of a quantized model by the error that it had.

    A quantized model may differ from JAX by twice the error that was reported of it, relative to
    the largest number of the array.

    Args:
        model: the model.
        trials: the trials.
        tolerance: the allowed difference, which then holds for a quantized model, too; by default
            the one that was allowed when the model was written.
        process: the process that runs it.

    Raises:
        FormatError: the model is damaged.
    """
    rows = compare_model(model, trials, tolerance or kept_tolerance(model), process=process)
    error = kept_error(model)
    if error is None or tolerance is not None:
        return rows
    return [_of_quantized(row, _MARGIN * error) for row in rows]


def _of_quantized(row: VerifyRow, allowed: float) -> VerifyRow:
    if math.isinf(row.error) and row.problem:
        return row
    if row.error <= allowed:
        return VerifyRow(row.signature, row.inputs, row.order, row.error, "")
    problem = f"The error is {row.error:.1e}; when it was quantized it was {allowed / _MARGIN:.1e}."
    return VerifyRow(row.signature, row.inputs, row.order, row.error, problem)
