"""Bound calls become one LiteRT model, a signature for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from bridge.core.names import names_of_signature
from bridge.core.updates import parse_updates
from bridge.core_ops.decompositions.decomposition import custom_calls_of
from bridge.exporting.plain_parameters import with_counters
from bridge.exporting.source import ModelFormat, Source, open_model, read_source
from bridge.inspecting.tensor_report import TensorReport
from bridge.inspecting.written_file import WrittenSignature
from bridge.litert.emitting.model_emitter import SignatureBlock, emit_model
from bridge.litert.lowering.call_lowering import DECOMPOSITIONS, Places, lower_call
from bridge.litert.lowering.lowering_table import LITERT_TABLE
from bridge.litert.lowering.storage_dtypes import at_boundary, boundary_dtype, boundary_shape
from bridge.loading.loaded_model import LoadedModel
from bridge.sources.bound_call import BoundCall, bind
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.call import TensorSpec
from xla_call_module.errors import StructureError

State = Literal["variables", "arguments"]

_LITERT = ModelFormat(
    name="a LiteRT model",
    custom_calls=(*LITERT_TABLE.custom_calls, *custom_calls_of(DECOMPOSITIONS)),
    shares_names=True,
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
    updates: Any = None,
    state: State = "variables",
) -> dict[str, BoundCall]:
    """Return the call of each signature, bound to its parameters."""
    if state not in get_args(State):
        raise StructureError(
            f"state is {state!r}; expected {' or '.join(map(repr, get_args(State)))}. To do: pass "
            "one of these."
        )
    every, sources = _sources(model, signatures)
    positions = parse_updates(updates, model)
    is_by_key = isinstance(model, Mapping) and isinstance(args, Mapping) and bool(args)
    is_by_key = is_by_key and args.keys() <= every.keys()
    known = {
        key: read_source(
            source,
            _LITERT,
            params=with_counters(params) if positions else params,
            args=args.get(key) if is_by_key else args,
            platform=platform,
            updates=positions.get(key if isinstance(model, Mapping) else DEFAULT_SIGNATURE),
        )
        for key, source in sources.items()
    }
    bound = {
        key: bind(
            one,
            _LITERT,
            platform=platform,
            inputs=names_of_signature(key, inputs, every),
            outputs=names_of_signature(key, outputs, every),
            order=order,
            state=None if state == "arguments" or order else _variables_of(known.values()),
        )
        for key, one in known.items()
    }
    for key, one in bound.items():
        if "self" in one.inputs.values():
            raise StructureError(
                f"Signature {key!r} has an input 'self', which LiteRT's interpreter for Python "
                "cannot take by name. To do: pass inputs=['another name']."
            )
    return bound


def _variables_of(known: Collection[Source]) -> set[str]:
    """Return the names of the variables that some functions assign."""
    names = {one.variables[index] for one in known for index in one.assigned.values()}
    files = {id(one.file) for one in known if names.intersection(one.variables.values())}
    if len(files) > 1:
        raise StructureError(
            f"Several of the files and functions have a variable {min(names)!r}, and one of them "
            "assigns it. To do: write a model for each, or pass state='arguments'."
        )
    return names


def _sources(
    model: Any, signatures: str | Sequence[str] | None
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the source of each signature that there is, and of each that is taken."""
    wanted = [signatures] if isinstance(signatures, str) else signatures
    model = open_model(model, stand_ins=True)
    if isinstance(model, LoadedModel):
        model = dict(model.signatures)
    if not isinstance(model, Mapping):
        if wanted is not None and len(wanted) != 1:
            raise StructureError(
                f"signatures has {len(wanted)} names, and what was passed is one function. To do: "
                "pass one name, or a mapping from names to functions."
            )
        alone = {wanted[0] if wanted else DEFAULT_SIGNATURE: model}
        return alone, alone
    keys = list(model) if wanted is None else wanted
    missing = [key for key in keys if key not in model]
    if missing or not keys:
        raise StructureError(
            f"There is no signature {missing[0] if missing else 'at all'!r}; there are "
            f"{', '.join(map(repr, model)) or 'none'}. To do: name some of these."
        )
    return model, {key: model[key] for key in keys}


def make_model(bound: Mapping[str, BoundCall], *, exact: bool = True) -> bytes:
    """Return the LiteRT model of some calls."""
    first = {name: array for one in bound.values() for name, array in one.state.values()}
    blocks = [_signature(key, one, exact=exact) for key, one in bound.items()]
    variables = {name: at_boundary(array) for name, array in first.items()}
    return emit_model(blocks, variables, exact=exact)


def _signature(key: str, bound: BoundCall, *, exact: bool) -> SignatureBlock:
    constants = {index: array for index, (_, array) in bound.parameters.items()}
    places = Places()
    block = lower_call(bound.call, constants, places, exact=exact)
    free = sorted({*bound.inputs, *bound.state})
    results = range(len(bound.call.results))
    outputs = dict(zip(bound.returned, bound.outputs, strict=True))
    return SignatureBlock(
        signature=key,
        block=block,
        inputs=tuple(bound.inputs.get(index, "") for index in free),
        outputs=tuple(outputs.get(index, "") for index in results),
        reads=tuple(bound.state[index][0] if index in bound.state else "" for index in free),
        assigns=tuple(bound.assigned.get(index, "") for index in results),
        places=places.texts,
    )


def written_signature(key: str, bound: BoundCall) -> WrittenSignature:
    """Return the inputs and outputs of a signature, as its call has them."""
    call = bound.call
    return WrittenSignature(
        key=key,
        inputs=tuple(
            _report(name, call.args[index], used=index in call.kept)
            for index, name in bound.inputs.items()
        ),
        outputs=tuple(
            _report(name, call.results[index])
            for index, name in zip(bound.returned, bound.outputs, strict=True)
        ),
        assigned=tuple(bound.assigned.values()),
    )


def _report(name: str, spec: TensorSpec, *, used: bool = True) -> TensorReport:
    """Return the report of an input or output, as the model takes or returns it."""
    report = TensorReport.of(name, spec, used=used)
    dtype = spec.dtype.numpy
    shape = None if spec.shape is None else boundary_shape(spec.shape, dtype)
    return dataclasses.replace(report, dtype=boundary_dtype(dtype).name, shape=shape)
