"""`batch_buckets=` of `save`: functions of rows, whose batches may be padded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import export

from bridge.batching.batch_sizes import Buckets, parse_buckets
from bridge.batching.row_export import batch_symbol, export_rows, keeps_chain
from bridge.batching.trial import Candidate, Difference, choose_others, try_rows
from savedmodel.model import BatchBuckets, Signature
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import symbols
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.asserting import with_note
from xla_call_module.tracebacks import warn


def export_each_of_rows(
    exporteds: Mapping[str, export.Exported],
    functions: Mapping[str, Callable[..., Any] | None],
    batch_buckets: Buckets,
) -> dict[str, export.Exported]:
    """Return the functions, with those of rows in the place of each that is to be padded."""
    made = dict(exporteds)
    for key in _by_key(batch_buckets, list(exporteds)):
        # Where there is no batch, that is refused when the inputs have names.
        if symbol := batch_symbol(exporteds[key]):
            made[key] = export_rows(exporteds[key], functions.get(key), symbol)
    return made


def with_batch_buckets(
    signatures: Sequence[Signature],
    given: Mapping[str, export.Exported],
    of_rows: Mapping[str, export.Exported],
    batch_buckets: Buckets,
    params: Any,
) -> tuple[Signature, ...]:
    """The signatures, with the batches of each padded to the sizes that it is to have."""
    by_key = _by_key(batch_buckets, [signature.key for signature in signatures])
    return tuple(
        _with_buckets(
            signature, given[signature.key], of_rows[signature.key], by_key[signature.key], params
        )
        if signature.key in by_key
        else signature
        for signature in signatures
    )


def _by_key(batch_buckets: Any, keys: Sequence[str]) -> dict[str, tuple[int, ...]]:
    if not isinstance(batch_buckets, Mapping):
        return dict.fromkeys(keys, parse_buckets(batch_buckets))
    if unknown := [key for key in batch_buckets if key not in keys]:
        raise StructureError(
            f"batch_buckets has sizes for {', '.join(map(repr, unknown))}; the signatures are "
            f"{', '.join(keys)}. To do: name some of these."
        )
    return {key: parse_buckets(sizes) for key, sizes in batch_buckets.items()}


def _with_buckets(
    signature: Signature,
    given: export.Exported,
    rows: export.Exported,
    sizes: tuple[int, ...],
    params: Any,
) -> Signature:
    call, key = from_exported(given), signature.key
    if signature.assigned_variables:
        raise StructureError(
            f"{key} assigns its parameters, and the rows that batch_buckets adds to a batch would "
            "count in them. To do: leave it out of batch_buckets, as in batch_buckets={'predict': "
            "(1, 8)}."
        )
    buckets = BatchBuckets(_batch_symbol(signature, call), sizes)
    inputs = {index: name for name, index in signature.inputs.items()}
    outputs = {index: name for name, index in signature.outputs.items()}
    for index, spec in enumerate(call.args):
        _check_dimensions(f"The input {inputs.get(index, spec.path)} of {key}", spec, buckets)
    for index, spec in enumerate(call.results):
        _check_dimensions(f"The output {outputs[index]} of {key}", spec, buckets)
    _check_sizes(key, call, buckets)
    if sizes != (1,):
        _check_rows(signature, given, rows, call, buckets, params)
    function = dataclasses.replace(signature.function, batch_buckets=buckets)
    if function.check is not None:
        # The assertions come after the padding, so that their numbers are not those of a request.
        note = f"Batches are padded to {', '.join(map(str, sizes))} before they are compared."
        function = dataclasses.replace(function, check=with_note(function.check, note))
    return dataclasses.replace(signature, function=function)


def _batch_symbol(signature: Signature, call: CallModule) -> str:
    """The one dimension variable that leads the shapes of inputs."""
    leading = {
        name: (call.args[index].shape or (0,))[0]
        for name, index in signature.inputs.items()
        if call.args[index].shape
    }
    symbolic = {name: str(dim) for name, dim in leading.items() if isinstance(dim, str)}
    leaders = sorted(set(symbolic.values()))
    listed = ", ".join(f"{name} {call.args[signature.inputs[name]]}" for name in signature.inputs)
    if len(leaders) != 1 or symbols(leaders[0]) != {leaders[0]}:
        names = " and ".join(leaders) or "no symbolic dimension"
        what = f"{names} {'lead' if len(leaders) > 1 else 'leads'}"
        raise StructureError(
            f"batch_buckets needs one dimension variable that leads the inputs of {signature.key}; "
            f"{what} them: {listed}. To do: export it with the batch first and under one "
            "name, as in jax.export.symbolic_shape('b, 28, 28'); or name the signatures that have "
            "batches, as in batch_buckets={'serving_default': (1, 8)}."
        )
    return leaders[0]


def _check_dimensions(what: str, spec: TensorSpec, buckets: BatchBuckets) -> None:
    """Refuse a shape in which the batch is anywhere but in front."""
    shape = spec.shape or ()
    others = shape[1:] if buckets.lead(spec) else shape
    if any(buckets.symbol in symbols(dim) for dim in others):
        raise StructureError(
            f"{what} is {spec}, where a dimension besides the first one depends on the batch "
            f"{buckets.symbol}, and would change with the added rows. To do: leave batch_buckets "
            "out."
        )


def _check_sizes(key: str, call: CallModule, buckets: BatchBuckets) -> None:
    """Refuse a bucket that the function does not take."""
    others = [name for name in call.symbols if name != buckets.symbol]
    for size in buckets.sizes:
        if choose_others(call, others, {buckets.symbol: size}) is None:
            raise StructureError(
                f"The function of {key} takes no batch of {size}: the constraints on its dimension "
                f"variables exclude {buckets.symbol} = {size}. To do: leave {size} out of "
                "batch_buckets, or export it with other constraints."
            )


def _check_rows(
    signature: Signature,
    given: export.Exported,
    rows: export.Exported,
    call: CallModule,
    buckets: BatchBuckets,
    params: Any,
) -> None:
    """Refuse a function that is not that of its rows."""
    candidate = Candidate(
        given, rows, buckets.symbol,
        batches=tuple(index for index, spec in enumerate(call.args) if buckets.lead(spec)),
        params=params, keeps_chain=keeps_chain(rows) and len(signature.function.chain) > 1,
    )  # fmt: skip
    difference, reason = try_rows(candidate)
    if difference is not None:
        raise _refusal(signature, call, buckets, difference)
    if reason:
        warn(
            f"Whether {signature.key} computes each row of a batch for itself, as what was written "
            f"does, was not tried: {reason} To do: compare them where it runs.",
        )


def _refusal(
    signature: Signature, call: CallModule, buckets: BatchBuckets, found: Difference
) -> StructureError:
    outputs = {index: name for name, index in signature.outputs.items()}
    inputs = {index: name for name, index in signature.inputs.items()}
    if found.is_gradient:
        what = f"The gradient of {inputs.get(found.index, call.args[found.index].path)}"
    else:
        what = f"The output {outputs[found.index]} ({call.results[found.index].path})"
    spec = None if found.is_gradient else call.results[found.index]
    if spec is not None and not buckets.lead(spec):
        return StructureError(
            f"{what} of {signature.key} is {spec}, without the batch {buckets.symbol}, and depends "
            "on it: rows that are added to the batch would count in it. To do: return it for each "
            "row, or leave it out, or leave batch_buckets out."
        )
    return StructureError(
        f"{what} of {signature.key} {found.consequence}, as JAX computes it of {found.kind} "
        f"inputs. So padded batches would have other results. To do: {found.remedy}; or leave "
        "batch_buckets out."
    )
