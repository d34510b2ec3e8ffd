"""LiteRT models with smaller weights: the calibration data, and what quantization costs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.core.npz_file import NPZ_ERRORS, open_npz
from bridge.core.probes import RANDOM
from bridge.core.worker_messages import describe_arrays
from bridge.inspecting.written_file import Quantization
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.runtime import Runtime, run_trial
from bridge.litert.worker_process import LiteRTProcess, ProcessDeath
from bridge.sources.bound_call import BoundCall
from bridge.verifying.bound_trials import given_trials
from bridge.verifying.comparison import greatest_error, is_finite
from bridge.verifying.trials import Trial
from bridge.verifying.verification import as_call
from xla_call_module.dtypes import Array
from xla_call_module.errors import (
    FormatError,
    InteropError,
    MissingDependencyError,
    StructureError,
    UnsupportedError,
    installing,
    quote,
)

KINDS = ("dynamic_int8", "float16", "int8")
_WHEEL = "ai-edge-quantizer"

Samples = Mapping[str, Sequence[Mapping[str, Array]]]


def check_quantize(quantize: Any, calibration: Any, bound: Mapping[str, BoundCall]) -> None:
    """Refuse options that do not fit."""
    import importlib.util

    if quantize is None:
        if calibration is not None:
            raise StructureError(
                "calibration= is for quantize=, which is not passed. To do: pass both, or none."
            )
        return
    if quantize not in KINDS:
        raise StructureError(
            f"quantize is {quantize!r}; expected one of {', '.join(KINDS)}. To do: pass that."
        )
    if quantize == "int8" and calibration is None:
        raise StructureError(
            "quantize='int8' needs calibration data. To do: pass calibration=, inputs such as "
            "those that the model is used with, or quantize='dynamic_int8'."
        )
    if quantize == "int8" and (keys := [key for key, one in bound.items() if one.assigned]):
        raise UnsupportedError(
            f"quantize='int8' is for models without variables, and {', '.join(keys)} assigns "
            "variables. To do: pass state='arguments', or another quantize=."
        )
    if importlib.util.find_spec("ai_edge_quantizer") is None:
        raise MissingDependencyError.of("quantize=", _WHEEL, extra="litert")


def read_samples(calibration: Any, bound: Mapping[str, BoundCall]) -> Samples:
    """Return the inputs of the calls of each signature."""
    if isinstance(calibration, str | os.PathLike):
        calibration = _of_file(calibration, bound)
    is_by_key = isinstance(calibration, Mapping) and bool(calibration.keys() & bound.keys())
    if is_by_key:
        calibration = {key: calls for key, calls in calibration.items() if key in bound}
    else:
        if len(bound) > 1 or isinstance(calibration, Mapping):
            raise StructureError(
                f"The model has the signatures {', '.join(bound)}. To do: pass calibration as a "
                "mapping from these to the calls of each."
            )
        calibration = dict.fromkeys(bound, calibration)
    samples = {
        key: [_sample(call, bound[key], key) for call in calls]
        for key, calls in calibration.items()
        if isinstance(calls, Iterable)
    }
    if not samples or not all(samples.values()):
        raise StructureError(
            "calibration has no calls. To do: pass an iterable of inputs: arrays, or mappings from "
            "the names of the inputs to arrays."
        )
    return samples


def _of_file(path: str | os.PathLike[str], bound: Mapping[str, BoundCall]) -> Any:
    """Return the calls in a file, whose arrays have one more axis, in front, for the calls."""
    try:
        with open_npz(path) as entries:
            arrays = {name: entries[name] for name in entries}
    except (OSError, InteropError):
        raise
    except NPZ_ERRORS as error:
        raise FormatError(
            f"{path} is not a file of arrays: {quote(error)}. To do: write it with numpy.savez."
        ) from error
    calls = {}
    for key, one in bound.items():
        named = {
            name: arrays.get(f"{key}/{name}", arrays.get(name)) for name in one.inputs.values()
        }
        given = {name: array for name, array in named.items() if array is not None and array.ndim}
        if named and len(given) == len(named):
            count = min(map(len, given.values()))
            calls[key] = [{name: a[n] for name, a in given.items()} for n in range(count)]
    if not calls:
        raise StructureError(
            f"{path} has no array for some input of each signature; it has "
            f"{', '.join(arrays) or 'none at all'}. To do: name them as the inputs, or "
            "SIGNATURE/INPUT; the first axis has the calls."
        )
    return calls


def _sample(call: Any, bound: BoundCall, key: str) -> dict[str, Array]:
    names = [*bound.inputs.values()]
    if not isinstance(call, Mapping):
        several = call if isinstance(call, tuple | list) else (call,)
        call = dict(zip(names, several, strict=False)) if len(several) == len(names) else {}
    if set(call) != set(names):
        raise StructureError(
            f"A calibration call does not fit {key!r}, whose inputs are {', '.join(names)}. To do: "
            "pass an array for each, as a mapping from their names, or a tuple in this order."
        )
    specs = {name: bound.original.args[index] for index, name in bound.inputs.items()}
    try:
        arrays = {name: np.asarray(call[name], specs[name].dtype.numpy) for name in names}
    except (TypeError, ValueError) as error:
        raise StructureError(
            f"An array in calibration for {key!r} cannot be read: {error}. To do: pass arrays of "
            "numbers."
        ) from error
    for name, array in arrays.items():
        shape = specs[name].shape or ()
        fits = array.ndim == len(shape) and all(
            size == sample or not isinstance(size, int)
            for size, sample in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise StructureError(
                f"An array for {name!r} in calibration has the shape {array.shape}; expected "
                f"{shape}. To do: pass each call with its own arrays."
            )
    return arrays


def quantized(
    model: bytes,
    kind: str,
    trials: Sequence[Trial],
    *,
    bound: Mapping[str, BoundCall],
    calibration: Any,
    process: LiteRTProcess,
) -> tuple[bytes, Quantization]:
    """Return a quantized model, and what that cost.

    The error is that on the calls of the calibration data; where there are none, on random inputs.
    """
    samples = {} if calibration is None else read_samples(calibration, bound)
    measured = list(given_trials(bound, samples)) or [t for t in trials if t.kind == RANDOM]
    measured = [as_call(trial, at_boundary) for trial in measured]
    refusals = []
    for products_only in (False, True) if kind == "int8" else (False,):
        try:
            made = _quantize(model, kind, measured, process, products_only=products_only)
            error = _greatest_error(made, measured, process)
        except InteropError as refusal:
            refusals.append(refusal)
            continue
        report = Quantization(kind, len(model), len(made), error, is_calibrated=bool(samples))
        return made, report
    raise refusals[-1]


def _quantize(
    model: bytes,
    kind: str,
    measured: Sequence[Trial],
    process: LiteRTProcess,
    *,
    products_only: bool,
) -> bytes:
    calls = [(t.signature, t.inputs) for t in measured] if kind == "int8" else []
    try:
        answer, parts = process.request(
            "quantize",
            [model, *(array for _, inputs in calls for array in inputs.values())],
            kind=kind,
            calls=[[key, describe_arrays(inputs)] for key, inputs in calls],
            products_only=products_only,
        )
    except ProcessDeath as error:
        raise _refused(str(error)) from error
    if answer.get("error", "").startswith(("ImportError", "ModuleNotFoundError")):
        raise MissingDependencyError(
            f"quantize= needs {_WHEEL}, which cannot be imported: {answer['error']}. To do: "
            f"install what is missing, or {installing('litert')}."
        )
    if "error" in answer:
        raise _refused(answer["error"])
    return bytes(parts[0])


def _refused(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{_WHEEL} does not quantize the model: {why}. To do: pass another quantize=, or none."
    )


def _greatest_error(model: bytes, trials: Sequence[Trial], process: LiteRTProcess) -> float:
    """Return the greatest error of any result, relative to the largest number of its array."""
    errors = [0.0]
    with Runtime(model, process=process) as runtime:
        for trial in trials:
            results = run_trial(runtime, trial)
            for name, wanted in trial.expected[0].items():
                if results[name].shape != wanted.shape or not _is_like(results[name], wanted):
                    raise UnsupportedError(
                        f"The quantized model returns NaN or infinity in {name} of "
                        f"{trial.signature}, where JAX returns finite numbers. To do: pass another "
                        "quantize=, or other calibration data."
                    )
                errors.append(greatest_error(results[name], wanted))
    return max(errors)


def _is_like(actual: Array, wanted: Array) -> bool:
    return is_finite(actual) or not is_finite(wanted)
