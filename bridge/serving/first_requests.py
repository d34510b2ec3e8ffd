"""The first requests to a version: what XLA compiles for each size, and how long that takes.

TensorFlow compiles a StableHLO module for each shape that it is called with, at the first such
request; warmup records are such requests, which come while the version is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.core.probes import RANDOM
from bridge.serving.signatures import ServedSignature, ServedTensor
from bridge.serving.warmup import WarmupRequest, drawn_requests, read_warmup
from savedmodel.files.assets import FIRST_REQUESTS_FILE
from savedmodel.files.folder import write_text
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """The first request of one size to a signature.

    Attributes:
        signature: the key of the signature.
        batch: the size along dimension 0, padded as the server or the signature pads it; 0 where
            no input has one.
        warmed: whether a warmup record of this size comes before it.
        seconds: how long it took in TensorFlow; None where it was not measured.
    """

    signature: str
    batch: int
    warmed: bool
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FirstRequests:
    """The compilations of XLA at the first requests to a version.

    Attributes:
        sizes: the requests of the sizes that are foreseen: those of warmup records, and those that
            the server or the signature pads batches to.
        unbounded: for each signature that is compiled again for each new size, for as long as it is
            served, the inputs whose sizes nothing bounds.
        problem: why not all of them were measured; empty where they were, or were not to be.
    """

    sizes: tuple[FirstRequest, ...] = ()
    unbounded: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    problem: str = ""

    def lines(self) -> list[str]:
        """Return a line for each signature and each finding."""
        texts = []
        for key in dict.fromkeys(request.signature for request in self.sizes):
            requests = [request for request in self.sizes if request.signature == key]
            cold = [str(request.batch) for request in requests if not request.warmed]
            covered = "none" if len(cold) == len(requests) else "all"
            covered = f"all but {', '.join(cold)}" if cold and covered == "all" else covered
            sizes = ", ".join(map(_text, requests))
            texts.append(f"{key} compiles for batches of {sizes}; warmup covers {covered}")
        texts += [
            f"{key} compiles again for each new size of {', '.join(inputs)}. To do: publish with "
            "batch_buckets= or batching=, and export other dimensions with fixed sizes"
            for key, inputs in self.unbounded.items()
        ]
        return [*texts, *([f"first requests: {self.problem}"] if self.problem else [])]


def _text(request: FirstRequest) -> str:
    return f"{request.batch}" + ("" if request.seconds is None else f" ({request.seconds:.2g} s)")


def find_first_requests(
    folder: Path,
    signatures: Sequence[ServedSignature],
    allowed: Sequence[int],
    *,
    limit: float | None,
    seed: int,
) -> FirstRequests:
    """Return what the first requests to a version compile."""
    compiled = {each.key: each for each in signatures if each.platforms}
    warmed: dict[tuple[str, int], WarmupRequest] = {}
    for request in read_warmup(folder):
        if (signature := compiled.get(request.key)) is not None:
            rows = _padded(request.rows, allowed or signature.buckets)
            warmed.setdefault((request.key, rows), request)
    wanted: dict[tuple[str, int], WarmupRequest | None] = {**warmed}
    for signature in compiled.values():
        for size in allowed or signature.buckets or _least(signature, warmed, limit):
            wanted.setdefault((signature.key, size), _drawn(signature, size, seed))
    found = FirstRequests(
        tuple(FirstRequest(*place, place in warmed) for place in sorted(wanted)),
        {key: inputs for key, each in compiled.items() if (inputs := _unbounded(each, allowed))},
    )
    if limit is None:
        return found
    found = _measure(folder, compiled, found, [wanted[place] for place in sorted(wanted)], limit)
    report = folder / FIRST_REQUESTS_FILE
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)  # the version that it is copied from may have the same file
    write_text(report, json.dumps(dataclasses.asdict(found), indent=1))
    return found


def _padded(rows: int, sizes: Sequence[int]) -> int:
    return next((size for size in sizes if size >= rows), rows)


def _least(
    signature: ServedSignature, warmed: Mapping[tuple[str, int], WarmupRequest], limit: float | None
) -> tuple[int, ...]:
    """Return the sizes of a signature that pads nothing: its only one, or one to be measured."""
    if not signature.has_free_batch:
        return (signature.fixed_batch or 0,)
    is_warmed = any(key == signature.key for key, _ in warmed)
    return () if limit is None or is_warmed else (1,)


def _drawn(signature: ServedSignature, size: int, seed: int) -> WarmupRequest | None:
    """Return made-up inputs of a size; None where sizes alone do not determine them."""
    with contextlib.suppress(StructureError):
        return next(drawn_requests(signature, (size,), seed))
    return None


def _unbounded(signature: ServedSignature, allowed: Sequence[int]) -> tuple[str, ...]:
    """Return the inputs of which requests of any size are compiled again."""
    batches = {tensor.leading for tensor in signature.inputs if tensor.shape} - {None}
    padded = bool(allowed or signature.buckets) and sum(isinstance(b, str) for b in batches) <= 1
    return tuple(str(each) for each in signature.inputs if _is_open(each, padded=padded))


def _is_open(tensor: ServedTensor, *, padded: bool) -> bool:
    shape = tensor.shape
    return shape is None or any(not isinstance(dim, int) for dim in shape[int(padded) :])


def _measure(
    folder: Path,
    signatures: Mapping[str, ServedSignature],
    found: FirstRequests,
    requests: Sequence[WarmupRequest | None],
    limit: float,
) -> FirstRequests:
    """Return what was found with the seconds of those requests whose inputs are numbers."""
    from bridge.verifying.tensorflow_process import run_trials
    from bridge.verifying.trials import Trial

    trials: dict[int, Trial] = {}
    for number, request in enumerate(requests):
        inputs = None if request is None else request.inputs()
        if request is not None and inputs is not None and all(map(_is_numeric, inputs.values())):
            names = tuple(tensor.name for tensor in signatures[request.key].outputs)
            trials[number] = Trial(request.key, RANDOM, {}, inputs, (), (), names, (), ({},))
    run = run_trials(folder, [*trials.values()], limit=limit)
    seconds = {
        number: run.seconds[place]
        for place, number in enumerate(trials)
        if place in run.seconds and not run.errors[place]
    }
    sizes = tuple(
        dataclasses.replace(size, seconds=seconds.get(number))
        for number, size in enumerate(found.sizes)
    )
    left = len(sizes) - len(seconds)
    why = run.failure or next(filter(None, run.errors.values()), "inputs that cannot be made up")
    problem = f"{left} of {len(sizes)} were not measured within {limit:g} s: {why}" if left else ""
    return dataclasses.replace(found, sizes=sizes, problem=problem)


def _is_numeric(array: Array) -> bool:
    return bool(array.dtype != object)
