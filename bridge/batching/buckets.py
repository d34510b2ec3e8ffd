"""`batch_buckets=` of `save`: what may be padded without a change of the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax import export

from bridge.batching.batch_sizes import Buckets, parse_buckets
from bridge.batching.rowwise.analysis import results_in_batches
from bridge.batching.trial import try_padding
from savedmodel.model import BatchBuckets, Signature
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import symbols
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.asserting import with_note
from xla_call_module.tracebacks import warn

__all__ = ["with_batch_buckets"]


def with_batch_buckets(
    signatures: Sequence[Signature],
    exporteds: Mapping[str, export.Exported],
    batch_buckets: Buckets,
    params: Any,
) -> tuple[Signature, ...]:
    """The signatures, with the batches of each padded to the sizes that it is to have.

    Args:
        signatures: the signatures of a file.
        exporteds: the exported function of each signature, by its key.
        batch_buckets: sizes for all signatures, or by their keys.
        params: the first argument of each function, if the file has parameters.

    Raises:
        StructureError: a size is no batch size, or not what the function takes; the batch is not
            the first dimension of inputs and outputs under one name; a result depends on the rows
            that would be added.

    Warns:
        UserWarning: whether one does was not tried, because the function does not run here.
    """
    by_key = _by_key(batch_buckets, [signature.key for signature in signatures])
    return tuple(
        _with_buckets(signature, exporteds[signature.key], by_key[signature.key], params)
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
    signature: Signature, exported: export.Exported, sizes: tuple[int, ...], params: Any
) -> Signature:
    call, key = from_exported(exported), signature.key
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
    _check_rows(signature, call, buckets)
    reason = try_padding(signature, exported, call, buckets, params)
    if reason:
        warn(
            f"Padded batches of {key} were not compared with unpadded ones: {reason} To do: "
            "compare them where it runs.",
        )
    function = dataclasses.replace(signature.function, batch_buckets=buckets)
    if function.check is not None:
        # The assertions come after the padding, so that their numbers are not those of a request.
        note = f"Batches are padded to {', '.join(map(str, sizes))} before they are compared."
        function = dataclasses.replace(function, check=with_note(function.check, note))
    return dataclasses.replace(signature, function=function)


def _batch_symbol(signature: Signature, call: CallModule) -> str:
    """The one dimension variable that leads the shapes of inputs.

    Raises:
        StructureError: there is none, or there are several.
    """
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


def _check_rows(signature: Signature, call: CallModule, buckets: BatchBuckets) -> None:
    """Refuse a result of which the operations do not tell that each row is computed for itself.

    Raises:
        StructureError: there is one.
    """
    batches = [index for index, spec in enumerate(call.args) if buckets.lead(spec)]
    results = results_in_batches(call, buckets.symbol, batches)
    names = {index: name for name, index in signature.outputs.items()}
    for index, (spec, value) in enumerate(zip(call.results, results, strict=True)):
        if (mixing := value.mixing) is None:
            continue
        what = f"The output {names[index]} of {signature.key}"
        if not buckets.lead(spec):
            raise StructureError(
                f"{what} is {spec}, without the batch {buckets.symbol}, and is computed of it: "
                f"added rows would count, since {mixing.text}. To do: return it for each row, or "
                "leave it out, or leave batch_buckets out."
            )
        raise StructureError(
            f"{what} {mixing.consequence}: {mixing.text}. So padded batches could have wrong "
            "results. To do: compute each row for itself, such as by jax.vmap of a function of one "
            "row; where it normalizes over the batch, export the function as it is used after "
            "training; or leave batch_buckets out."
        )
