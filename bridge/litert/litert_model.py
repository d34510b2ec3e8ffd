"""Bound calls become one LiteRT model, a signature for each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax import export

from bridge.inspecting.written_file import TensorReport, WrittenSignature
from bridge.litert.converter import SignatureModule, convert
from bridge.litert.lowering.call_lowering import Places, lower_call
from bridge.litert.lowering.lowering_table import LITERT_TABLE
from bridge.litert.worker_process import LiteRTProcess
from bridge.loading.loaded import LoadedModel
from bridge.sources.bound_call import BoundCall, ModelFormat, bind_source
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.read import read
from xla_call_module.errors import StructureError

__all__ = ["bind_signatures", "make_model", "written_signature"]

_LITERT = ModelFormat(
    name="a LiteRT model", custom_calls=tuple(LITERT_TABLE.custom_calls), shares_names=True
)


def bind_signatures(
    model: Any,
    *,
    signatures: str | Sequence[str] | None,
    params: Any,
    args: Any,
    platform: str,
    order: int,
    inputs: Any,
    outputs: Any,
) -> dict[str, BoundCall]:
    """Return the call of each signature, bound to its parameters.

    Args:
        model: as for `bridge.to_litert`.
        signatures: those of a file or a mapping that are taken, or the name for a single function.
        params: as for `bridge.to_litert`.
        args: the same.
        platform: the same.
        order: how often each is differentiated first.
        inputs: names, as for `bridge.save`.
        outputs: the same.

    Raises:
        InteropError: a source is none of those that there are, or there is no such signature.
    """
    sources = _sources(model, signatures)

    def own(value: Any, key: str) -> Any:
        is_by_key = (
            isinstance(value, Mapping) and len(sources) > 1 and value.keys() <= sources.keys()
        )
        return value.get(key) if is_by_key else value

    return {
        key: bind_source(
            source,
            _LITERT,
            params=params,
            args=own(args, key),
            platform=platform,
            inputs=own(inputs, key),
            outputs=own(outputs, key),
            order=order,
        )
        for key, source in sources.items()
    }


def _sources(model: Any, signatures: str | Sequence[str] | None) -> dict[str, Any]:
    """Return the source of each signature."""
    wanted = [signatures] if isinstance(signatures, str) else signatures
    if isinstance(model, str | os.PathLike) and not Path(model).is_file():
        model = LoadedModel(read(model))
    if isinstance(model, LoadedModel):
        model = dict(model.signatures)
    if not isinstance(model, Mapping):
        if wanted is not None and len(wanted) != 1:
            raise StructureError(
                f"signatures has {len(wanted)} names, and what was passed is one function. To do: "
                "pass one name, or a mapping from names to functions."
            )
        return {wanted[0] if wanted else DEFAULT_SIGNATURE: model}
    keys = list(model) if wanted is None else wanted
    missing = [key for key in keys if key not in model]
    if missing or not keys:
        raise StructureError(
            f"There is no signature {missing[0] if missing else 'at all'!r}; there are "
            f"{', '.join(map(repr, model)) or 'none'}. To do: name some of these."
        )
    return {key: model[key] for key in keys}


def make_model(bound: Mapping[str, BoundCall], *, process: LiteRTProcess | None = None) -> bytes:
    """Return the LiteRT model of some calls.

    Args:
        bound: the call of each signature.
        process: the process that converts them; by default one that ends afterwards.

    Raises:
        UnsupportedError: an operation that LiteRT does not execute, with its source line.
    """
    places = Places()
    modules = [
        SignatureModule(
            signature=key,
            artifact=bytes(_lowered(one, places).mlir_module_serialized),
            inputs=tuple(one.inputs.values()),
            outputs=one.outputs,
        )
        for key, one in bound.items()
    ]
    return convert(modules, process=process, places=places.texts)


def _lowered(bound: BoundCall, places: Places) -> export.Exported:
    constants = {index: array for index, (_, array) in bound.parameters.items()}
    return lower_call(bound.call, constants, places, has_kernels=True)


def written_signature(key: str, bound: BoundCall) -> WrittenSignature:
    """Return the inputs and outputs of a signature, as its call has them."""
    call = bound.call
    return WrittenSignature(
        key=key,
        inputs=tuple(
            TensorReport.of(name, call.args[index], used=index in call.kept)
            for index, name in bound.inputs.items()
        ),
        outputs=tuple(map(TensorReport.of, bound.outputs, call.results)),
    )
