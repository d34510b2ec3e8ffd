"""`inspect`: what is in a SavedModel, without TensorFlow and without running it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from savedmodel.model import SavedModel, Signature, Variable
from savedmodel.read import read
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import Shape
from xla_call_module.errors import refusing_damage
from xla_call_module.retargeting import oldest_release
from xla_call_module.stablehlo import custom_calls, open_module
from xla_call_module.versions import RELEASES

__all__ = ["FileReport", "ParameterReport", "SignatureReport", "TensorReport", "inspect"]


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output of a signature.

    Attributes:
        name: in the signature.
        path: in the exported function's pytrees.
        dtype: what crosses.
        shape: symbolic dimensions as text.
        element: JAX's own dtype where it is another, such as `key<fry>`.
        used: whether the module takes it; always so for outputs.
    """

    name: str
    path: str
    dtype: str
    shape: Shape | None
    element: str
    used: bool


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """A signature and the module behind it.

    Attributes:
        key: such as `serving_default`.
        function: the name of the exported function.
        inputs: in the order of the function's arguments.
        outputs: in the order of its results.
        platforms: what it was lowered for, in the order of the platform index.
        calling_convention: of the XlaCallModule node.
        stablehlo: the version of the portable artifact.
        tensorflow: the oldest release known to run it, gradients included.
        disabled_checks: safety checks that do not apply.
        custom_calls: targets that the module calls, sorted.
        gradient_order: how many orders of gradients the file has.
        module_bytes: the size of the module.
        devices: how many it was partitioned for.
    """

    key: str
    function: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    platforms: tuple[str, ...]
    calling_convention: int
    stablehlo: str
    tensorflow: str
    disabled_checks: tuple[str, ...]
    custom_calls: tuple[str, ...]
    gradient_order: int
    module_bytes: int
    devices: int


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """A variable."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    trainable: bool


@dataclass(frozen=True, slots=True)
class FileReport:
    """What `inspect` found.

    Attributes:
        path: the folder.
        bytes: of all its files.
        tensorflow: the oldest release known to read all of it.
        signatures: sorted by key, the default one first.
        parameters: in the order of their pytree.
        metadata: what the writer recorded; empty after TensorFlow has saved the file again.
    """

    path: str
    bytes: int
    tensorflow: str
    signatures: tuple[SignatureReport, ...]
    parameters: tuple[ParameterReport, ...]
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields of these classes."""
        return asdict(self)


def inspect(path: str | os.PathLike[str]) -> FileReport:
    """What is in a SavedModel.

    Args:
        path: its folder.

    Raises:
        FormatError: it is damaged, or its signatures are not calls of StableHLO modules.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin), platforms=["cpu", "tpu"])(1.0)
        >>> bridge.save(exported, "my_model")
        >>> bridge.inspect("my_model").signatures[0].platforms
        ('cpu', 'tpu')
    """
    folder = Path(path)
    with refusing_damage(str(path)):
        return _inspect(folder)


def _inspect(folder: Path) -> FileReport:
    model = read(folder)
    default = model.default.key
    signatures = sorted(model.signatures, key=lambda s: (s.key != default, s.key))
    reports = tuple(map(_report_signature, signatures))
    return FileReport(
        path=str(folder),
        bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        tensorflow=_newest([report.tensorflow for report in reports]),
        signatures=reports,
        parameters=tuple(map(_report_parameter, model.variables)),
        metadata=_metadata(model),
    )


def _report_signature(signature: Signature) -> SignatureReport:
    call = signature.function.call
    used = set(call.kept)
    with open_module(call.module) as module:
        targets = sorted({custom_call.target for custom_call in custom_calls(module)})
    return SignatureReport(
        key=signature.key,
        function=call.name,
        inputs=tuple(
            _report_tensor(name, call.args[index], used=index in used)
            for name, index in sorted(signature.inputs.items(), key=lambda item: item[1])
        ),
        outputs=tuple(
            _report_tensor(name, call.results[index], used=True)
            for name, index in sorted(signature.outputs.items(), key=lambda item: item[1])
        ),
        platforms=call.platforms,
        calling_convention=call.version,
        stablehlo=".".join(map(str, call.stablehlo_version)),
        tensorflow=_newest([_oldest(order) for order in signature.function.chain]),
        disabled_checks=tuple(map(str, call.disabled_checks)),
        custom_calls=tuple(targets),
        gradient_order=len(signature.function.chain) - 1,
        module_bytes=len(call.module),
        devices=call.nr_devices,
    )


def _report_tensor(name: str, spec: TensorSpec, *, used: bool) -> TensorReport:
    return TensorReport(name, spec.path, spec.dtype.name, spec.shape, spec.element, used)


def _report_parameter(variable: Variable) -> ParameterReport:
    return ParameterReport(
        variable.name, variable.dtype.name, variable.shape, variable.size, variable.trainable
    )


def _oldest(call: CallModule) -> str:
    release = oldest_release(call)
    return f"> {RELEASES[-1].name}" if release is None else release.name


def _newest(names: list[str]) -> str:
    """The newest of several releases, one that is newer than all known ones above them."""
    order = [release.name for release in RELEASES]
    return max(names, key=lambda name: order.index(name) if name in order else len(order))


def _metadata(model: SavedModel) -> dict[str, Any]:
    return {key: value for key, value in model.metadata.items() if key != "signatures"}
