"""`diff`: the differences of two SavedModels, without TensorFlow and without running them."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bridge.inspecting.diff_weights import NOTHING, WeightDifference, diff_weights
from bridge.inspecting.order_report import OrderReport
from bridge.inspecting.report import FileReport, SignatureReport, report_of
from bridge.inspecting.tensor_report import TensorReport
from bridge.loading.signature_calls import calls_of, names_of
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.model import SavedModel, Variable
from savedmodel.read import read
from xla_call_module._jax import PassManager
from xla_call_module.dimensions import aval_text
from xla_call_module.stablehlo.modules import open_module
from xla_call_module.tracebacks import api_boundary

KINDS = ("signatures", "specs", "versions", "checks", "shardings", "operations", "modules")


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same in both files.

    Attributes:
        kind: one of `KINDS`.
        where: the signature, the order and the name of the fact.
        first: the fact in the first file; empty where it is missing.
        second: the fact in the second file.
    """

    kind: str
    where: str
    first: str
    second: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.where}: {self.first or NOTHING} -> {self.second or NOTHING}"


@dataclass(frozen=True, slots=True)
class DiffReport:
    """The differences of two SavedModels.

    Attributes:
        first: the folder of the first file.
        second: the folder of the second one.
        differences: the differences besides those of variables, in the order of `KINDS`.
        weights: the variables that are not the same in both.
    """

    first: str
    second: str
    differences: tuple[Difference, ...]
    weights: tuple[WeightDifference, ...]

    @property
    def equal(self) -> bool:
        """Return whether the files are equal."""
        return not self.differences and not self.weights

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; numbers that JSON lacks, such as infinity, are text."""
        fields: dict[str, Any] = _without_infinities(asdict(self))
        return {"equal": self.equal, **fields}


@api_boundary
def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> DiffReport:
    """Return the differences of two SavedModels: signatures, modules, versions and weights.

    Modules are compared without their source locations. Variables are read a few megabytes at a
    time; for those that differ the report has the greatest difference.

    Example:
        >>> import bridge, jax, numpy
        >>> exported = jax.export.export(jax.jit(lambda w, x: w * x))(1.0, 1.0)
        >>> saved = bridge.save(exported, "a", params=numpy.float32(2.0))
        >>> saved = bridge.save(exported, "b", params=numpy.float32(2.5))
        >>> [(weight.name, weight.greatest) for weight in diff("a", "b").weights]
        [('params', 0.5)]
    """
    (ours, of_ours), (theirs, of_theirs) = (
        read_one_version(path, _read_facts) for path in (first, second)
    )
    weights = diff_weights(
        *(dict(zip(names_of(each), each, strict=True)) for each in (of_ours, of_theirs))
    )
    differences = sorted(
        _differences(ours, theirs), key=lambda difference: KINDS.index(difference.kind)
    )
    return DiffReport(str(first), str(second), tuple(differences), tuple(weights))


_Key = tuple[str, str]
# The facts of a signature, or of one of its orders, by kind and name.
_Facts = dict[_Key, str]


def _differences(ours: Mapping[str, _Facts], theirs: Mapping[str, _Facts]) -> Iterator[Difference]:
    """Yield the differences of each part; a part that only one file has is one difference."""
    missing: set[str] = set()
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            missing.add(name)
            if name.partition(",")[0] in missing - {name}:
                continue  # an order of a signature that is not there
            there = ["there" if name in parts else "" for parts in (ours, theirs)]
            yield Difference("signatures", name, *there)
            continue
        first, second = ours[name], theirs[name]
        for key in dict.fromkeys([*first, *second]):
            values = first.get(key, ""), second.get(key, "")
            if values[0] != values[1]:
                kind, where = key
                yield Difference(kind, f"{name}: {where}" if name else where, *values)


def _read_facts(folder: ModelFolder) -> tuple[dict[str, _Facts], tuple[Variable, ...]]:
    model = read(folder)
    return _facts(report_of(model, folder), model), model.variables


def _facts(report: FileReport, model: SavedModel) -> dict[str, _Facts]:
    signatures = {signature.key: signature for signature in model.signatures}
    recorded = {
        ("versions", key): str(value)
        for key, value in {"writer": report.writer, **report.metadata}.items()
    }
    parts = {"": recorded}
    digest = functools.cache(module_digest)
    for signature in report.signatures:
        parts[signature.key] = dict(_facts_of_signature(signature))
        calls = [call for chain in calls_of(signatures[signature.key]) for call in chain]
        for order, call in zip(signature.orders, calls, strict=True):
            name = f"{signature.key}, {order.title}"
            parts[name] = dict(_facts_of_order(order, digest(call.module)))
    return parts


def _facts_of_signature(signature: SignatureReport) -> Iterator[tuple[_Key, str]]:
    yield ("signatures", "function"), signature.function
    yield ("signatures", "variables"), ", ".join(signature.parameters)
    for role, tensors in (("in", signature.inputs), ("out", signature.outputs)):
        for position, tensor in enumerate(tensors):
            yield ("specs", f"{role} {tensor.name}"), _spec(tensor, position)
    if signature.assigned:
        yield ("signatures", "assigns"), ", ".join(signature.assigned)
    if signature.batch_buckets:
        yield ("signatures", "batch buckets"), ", ".join(map(str, signature.batch_buckets))
    yield ("checks", "platforms"), ", ".join(signature.platforms)
    yield ("checks", "disabled"), ", ".join(sorted(signature.disabled_checks))
    yield ("shardings", "devices"), str(signature.devices)


def _spec(tensor: TensorReport, position: int) -> str:
    kind = aval_text(tensor.dtype, tensor.shape)
    parts = [kind, tensor.element, "" if tensor.used else "unused"]
    return f"{' '.join(filter(None, parts))} at {tensor.path}, number {position}"


def _facts_of_order(order: OrderReport, digest: str) -> Iterator[tuple[_Key, str]]:
    yield ("versions", "StableHLO"), order.stablehlo
    yield ("versions", "calling convention"), str(order.calling_convention)
    yield ("versions", "TensorFlow"), order.tensorflow
    for name, number in order.operations.items():
        yield ("operations", name), str(number)
    yield ("modules", "contents"), digest
    if (sharding := order.sharding) is not None:
        mesh = " x ".join(f"{axis.name} {axis.size}" for axis in sharding.mesh)
        yield ("shardings", "mesh"), f"{mesh} ({sharding.partitioner})"
        for array in sharding.arrays:
            yield ("shardings", f"{array.role} {array.path}"), array.text


def module_digest(artifact: bytes) -> str:
    """Return a checksum of a module without its source locations and StableHLO version."""
    with open_module(artifact) as module:
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        return hashlib.sha256(bytecode.getbuffer()).hexdigest()[:16]


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
