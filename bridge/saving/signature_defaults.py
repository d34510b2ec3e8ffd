"""`defaults=` of `save`: what the inputs of a signature are that a request leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from savedmodel.model import Signature
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import symbols
from xla_call_module.dtypes import Array
from xla_call_module.errors import DtypeError, StructureError


def with_defaults(
    signatures: Sequence[Signature], defaults: Mapping[str, Any] | None
) -> tuple[Signature, ...]:
    """The signatures with defaults for some of their inputs."""
    if defaults is None:
        return tuple(signatures)
    if not isinstance(defaults, Mapping):
        raise StructureError(
            f"defaults={defaults!r}; expected values by the names of inputs, as {{'scale': 1}}."
        )
    keys = [signature.key for signature in signatures]
    by_key = all(isinstance(value, Mapping) for value in defaults.values())
    if not by_key and len(signatures) > 1:
        raise StructureError(
            f"There are {len(signatures)} signatures. To do: give defaults for each, as in "
            f"defaults={{{keys[0]!r}: {{…}}}}."
        )
    named: Mapping[str, Any] = defaults if by_key else {keys[0]: defaults}
    if unknown := sorted(named.keys() - set(keys)):
        raise StructureError(
            f"defaults has {unknown[0]!r}; the signatures are {', '.join(keys)}. To do: name "
            "some of these."
        )
    return tuple(
        dataclasses.replace(
            signature,
            defaults={
                name: _to_default(signature, name, value)
                for name, value in sorted(named.get(signature.key, {}).items())
            },
        )
        for signature in signatures
    )


def _to_default(signature: Signature, name: str, value: Any) -> Array:
    if name not in signature.inputs:
        raise StructureError(
            f"defaults has {name!r} for {signature.key}; its inputs are "
            f"{', '.join(signature.inputs)}. To do: name some of these."
        )
    spec = signature.function.call.args[signature.inputs[name]]
    array = _to_dtype(name, value, spec)
    own = {symbol for dim in spec.shape or () for symbol in symbols(dim)}
    shared = {
        symbol
        for other, index in signature.inputs.items()
        if other != name
        for dim in signature.function.call.args[index].shape or ()
        for symbol in symbols(dim)
    }
    if own & shared:
        raise StructureError(
            f"The input {name} of {signature.key} is {spec}, and {min(own & shared)} is a size of "
            "other inputs, too: one default fits requests of one size only. To do: export the "
            "function with an input that is broadcast, such as a scalar."
        )
    sizes = spec.static_shape or ()
    fits = len(sizes) == array.ndim and all(
        size in (None, given) for size, given in zip(sizes, array.shape, strict=True)
    )
    if not fits:
        raise StructureError(
            f"The default of {name} of {signature.key} has shape {array.shape}; expected {spec}."
        )
    return array


def _to_dtype(name: str, value: Any, spec: TensorSpec) -> Array:
    """The value in the dtype of its input, which must hold it."""
    given = np.asarray(value)
    dtype = spec.dtype.numpy
    is_python = isinstance(value, bool | int | float | complex | list | tuple)
    if given.dtype != dtype and not is_python:
        raise DtypeError(
            f"The default of {name} is {given.dtype.name}; expected {spec}. To do: convert it."
        )
    try:
        array: Array = np.asarray(value, dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            same = np.array_equal(
                array.astype(given.dtype), given, equal_nan=given.dtype.kind in "fc"
            )
    except (ValueError, TypeError, OverflowError) as error:
        raise DtypeError(f"The default of {name} is {value!r}; expected {spec}: {error}") from error
    if not same and given.dtype.kind not in "fc":
        raise DtypeError(
            f"The default of {name} is {value!r}, which {dtype.name} does not hold. To do: pass "
            "one that it holds."
        )
    if given.dtype.kind in "fc" and np.dtype(dtype).kind in "biu":
        raise DtypeError(f"The default of {name} is {value!r}; expected {spec}.")
    return array
