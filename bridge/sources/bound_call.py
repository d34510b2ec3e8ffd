"""The source of a model: a function, an `Exported`, or a file, with its parameters and names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.chains.exported_order import vjp_of
from bridge.chains.orders import NOT_DIFFERENTIABLE
from bridge.core.explaining import flatten, refusing_unsortable_keys
from bridge.core.exported_file import parse_exported
from bridge.core.keys import to_physical
from bridge.core.names import Names, choose_names, input_names, output_names
from bridge.core.narrow_types import NARROW_TYPES, storage_dtype_of
from bridge.core.narrowing import narrow_array, narrow_dtype
from bridge.core.trees import key_names, to_identifier, unique_names
from bridge.exporting.export_model import export_model
from bridge.loading.exported_from_call import exported_from_call
from bridge.loading.loaded import LoadedModel, LoadedSignature
from bridge.loading.mlir_files import call_of_file, is_mlir, with_signature
from bridge.sources.boundary_casts import cast_at_boundary, with_boundary_casts
from savedmodel.files.model_folder import read_file
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck
from xla_call_module.dtypes import Array
from xla_call_module.errors import (
    InteropError,
    PlatformError,
    ShardingError,
    StructureError,
)
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms

__all__ = ["BoundCall", "ModelFormat", "Source", "bind_source"]

# What JAX calls the argument of a VJP (jax/_src/export/_export.py); without it names are plainer.
_OF_VJP = "args_and_out_cts_flat_jax["
_MAX_ARTIFACT_BYTES = 1 << 32

Source = export.Exported | CallModule | LoadedModel | LoadedSignature | str | os.PathLike[str]
_SOURCES = (export.Exported, CallModule, LoadedModel, LoadedSignature, str, os.PathLike)


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A format of models that are one call each.

    Attributes:
        name: what a model of it is, such as `an ONNX model`, for messages.
        custom_calls: the targets of custom calls that it has rules for.
        shares_names: whether an input and an output may have one name.
    """

    name: str
    custom_calls: tuple[str, ...]
    shares_names: bool = False

    @property
    def disabled_checks(self) -> list[DisabledCheck]:
        """The safety checks that are off, so that calls with a rule pass."""
        return [DisabledCheck(f"custom_call:{name}") for name in self.custom_calls]


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call for one platform, bound to the arrays that are its parameters, with all names.

    It is to ONNX and LiteRT what `bridge.loading.binding.BoundExported` is to JAX, and
    `savedmodel.Function` to TensorFlow.

    Attributes:
        call: the call of the function.
        parameters: the name and array of each argument that is a parameter.
        inputs: the names of the other arguments, in their order.
        outputs: the names of the results.
        original: the call as it was before it was made ready for the format, with the same
            arguments and results.
    """

    call: CallModule
    parameters: Mapping[int, tuple[str, Array]]
    inputs: Mapping[int, str]
    outputs: tuple[str, ...]
    original: CallModule


def bind_source(
    source: Source | Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: str,
    inputs: Names | None,
    outputs: Names | None,
    order: int = 0,
) -> BoundCall:
    """The call to convert, bound to its parameters.

    Args:
        source: an `Exported`, what `bridge.load` returned, one of its signatures, a `CallModule`,
            the path of a SavedModel, of a serialized `Exported` or of StableHLO; or a function or
            module, which is exported here.
        format_: the format that the call is for.
        params: the pytree that is the first positional argument of the function; None for those of
            the file or the module, if there are any.
        args: where a function or a module is exported here, its arguments, as for `bridge.save`.
        platform: one of those that it was lowered for.
        inputs: names as for `bridge.save`.
        outputs: the same for the results.
        order: the number of times that it is differentiated first.

    Raises:
        InteropError: it is none of these, is damaged, or does not fit the parameters.
        OSError: a file cannot be read.
    """
    if not isinstance(source, _SOURCES):
        known = _export(source, format_, params=params, args=args, platform=platform)
    elif args is None:
        known = _read(source, params, format_)
    else:
        raise StructureError(
            "args= is for a function or a module, and what was passed is exported already. To do: "
            "leave it out, or pass the function."
        )
    call, exported = known.call, known.exported
    parameters = {} if known.params is None else _parameters(known)
    names = _names(known, parameters)
    for _ in range(order):
        exported = _vjp(exported_from_call(call) if exported is None else exported, call.name)
        call = _call_of(exported, format_)
        names = names.of_gradient()
    free = [index for index in range(len(call.args)) if index not in parameters]
    defaults = [names.arguments[index] for index in free]
    what = f"inputs of {call.name}"
    chosen = choose_names(defaults, inputs, what, ignore_case=False)
    results = choose_names(names.results, outputs, f"outputs of {call.name}", ignore_case=False)
    shared = set() if format_.shares_names else set(chosen) & set(results)
    if shared:
        taken = sorted(shared)[0]
        if outputs is not None or inputs is not None:
            raise StructureError(
                f"{taken!r} is both an input and an output of {call.name}, and {format_.name} "
                "has each name once. To do: take another name."
            )
        results = [f"{name}_output" if name in shared else name for name in results]
    return BoundCall(
        _prepare(call, platform, format_),
        parameters,
        dict(zip(free, chosen, strict=True)),
        tuple(results),
        call,
    )


def _call_of(exported: export.Exported, format_: ModelFormat) -> CallModule:
    """Return the call, with every custom call that has a rule, whatever TensorFlow has."""
    exported = with_boundary_casts(exported)
    return from_exported(exported, disabled_checks=format_.disabled_checks, carried=False)


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the arguments and results of a function."""

    arguments: Sequence[str]
    results: Sequence[str]

    def of_gradient(self) -> _Names:
        """The names of its VJP, of the same arguments and of a cotangent for each result."""
        cotangents = [f"{name}_cotangent" for name in self.results]
        gradients = [f"{to_identifier(name, fallback='input')}_gradient" for name in self.arguments]
        return _Names(unique_names([*self.arguments, *cotangents]), unique_names(gradients))


def _names(known: _KnownSource, parameters: Mapping[int, tuple[str, Array]]) -> _Names:
    call = known.call
    free = [index for index in range(len(call.args)) if index not in parameters]
    named = dict(zip(free, input_names(call.name, call, free, None), strict=True))
    named |= {index: name for index, name in known.inputs.items() if index in named}
    results = {**dict(enumerate(output_names(call.name, call, None))), **known.outputs}
    if _is_vjp(call):
        primals = len(results)  # a VJP has one result for each argument of its function
        named = {i: f"primal_{i}" if i < primals else f"cotangent_{i - primals}" for i in named}
        results = {index: f"gradient_{index}" for index in results}
    named |= {index: name for index, (name, _) in parameters.items()}
    return _Names([named[i] for i in sorted(named)], [results[i] for i in sorted(results)])


def _is_vjp(call: CallModule) -> bool:
    """Return whether JAX made a call as a VJP, whose arguments are leaves in their order."""
    return bool(call.operands) and all(spec.name.startswith(_OF_VJP) for spec in call.operands)


def _prepare(call: CallModule, platform: Any, format_: ModelFormat) -> CallModule:
    """The call for one platform of one device, without calls of libraries."""
    if not isinstance(platform, str):
        raise _no_platform(platform, f"{call.name} was lowered for {', '.join(call.platforms)}.")
    if not call.results:
        raise StructureError(
            f"{call.name} returns no array, and {format_.name} has at least one output. To do: "
            "return something."
        )
    if call.nr_devices != 1:
        raise ShardingError(
            f"{call.name} was exported for {call.nr_devices} devices, and {format_.name} runs on "
            "one. To do: export it without shardings."
        )
    return run_passes(call, [select_platforms([platform]), lower_linalg(operations=True)])


def _no_platform(platform: Any, known: str) -> PlatformError:
    return PlatformError(f"platform is {platform!r}; expected the name of one. {known}")


@dataclass(frozen=True, slots=True)
class _KnownSource:
    """A function as its source has it.

    Attributes:
        call: the function, with casts at its boundary.
        exported: what can be differentiated; None for a module alone.
        params: the pytree that is its first argument; None for none.
        inputs: the names that a file or a module has for arguments, by their index.
        outputs: the names that a file has for results, by their index.
        state: the arguments that a call of a file assigns, by their index: they are inputs.
    """

    call: CallModule
    exported: export.Exported | None
    params: Any
    inputs: Mapping[int, str] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)
    state: frozenset[int] = frozenset()


def _export(
    model: Any, format_: ModelFormat, *, params: Any, args: Any, platform: Any
) -> _KnownSource:
    """Return a function or a module for one platform, exported as `bridge.save` does it."""
    if isinstance(model, Mapping):
        raise StructureError(
            f"Expected one function, got a mapping of {len(model)}, and {format_.name} is a single "
            "one. To do: pass one of them, and write a file for each."
        )
    if not isinstance(platform, str):
        raise _no_platform(platform, "The function is lowered for it here.")
    with refusing_unsortable_keys("params, args or what the function takes"):
        traced = export_model(
            model, params=params, args=args, platforms=[platform],
            disabled_checks=format_.disabled_checks,
        )  # fmt: skip
    assert isinstance(traced.exported, export.Exported)
    known = _of_exported(traced.exported, traced.params, format_)
    first = len(tree_util.tree_leaves(traced.params))
    return dataclasses.replace(known, inputs=dict(enumerate(traced.inputs or (), start=first)))


def _read(source: Source, params: Any, format_: ModelFormat) -> _KnownSource:
    if isinstance(source, CallModule):
        return _KnownSource(with_signature(source), None, params)
    if isinstance(source, export.Exported):
        return _of_exported(source, params, format_)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_file():
            return _read_file(path, params, format_)
        source = LoadedModel(read(source))
    if isinstance(source, LoadedModel):
        source = _default_of(source)
    bound = source.binding
    inputs, outputs = (
        {index: name for name, index in names.items()} for names in (bound.inputs, bound.outputs)
    )
    values = source.params if params is None else params
    known = _of_exported(source.exported, values, format_)
    state, new = _state_of(source)
    return dataclasses.replace(
        known, inputs=inputs | state, outputs=outputs | new, state=frozenset(state)
    )


def _state_of(source: LoadedSignature) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of the variables that a signature assigns, by argument and by result.

    A model that is a pure function takes them as inputs, and returns their new values.
    """
    bound, names = source.binding, source.variable_names
    leaves = {variable: leaf for leaf, variable in enumerate(bound.variables)}
    assigned = {result: leaves[variable] for result, variable in bound.assigned.items()}
    known = {leaf: names[leaf] or f"state_{leaf}" for leaf in assigned.values()}
    return known, {result: f"new_{known[leaf]}" for result, leaf in assigned.items()}


def _default_of(model: LoadedModel) -> LoadedSignature:
    """Return the signature that is meant where none is named.

    Raises:
        StructureError: there are several, and none is the default one.
    """
    if len(model.signatures) > 1 and DEFAULT_SIGNATURE not in {*model.signatures, *model.others}:
        keys = ", ".join(map(repr, model.signatures))
        raise StructureError(
            f"Which signature is meant? The model has {keys}, and no {DEFAULT_SIGNATURE!r}. To do: "
            "name one, on the command line by --signature, in Python as "
            "bridge.load(path).signatures[...]."
        )
    return model.default


def _read_file(path: Path, params: Any, format_: ModelFormat) -> _KnownSource:
    content = read_file(path, limit=_MAX_ARTIFACT_BYTES)
    if is_mlir(content):
        return _KnownSource(
            call_of_file(path, content, prepare=cast_at_boundary, prepared=NARROW_TYPES),
            None,
            params,
        )
    exported = parse_exported(content, os.fspath(path), stand_ins=True)
    return _of_exported(exported, params, format_)


def _of_exported(exported: export.Exported, params: Any, format_: ModelFormat) -> _KnownSource:
    return _KnownSource(_call_of(exported, format_), exported, params)


def _vjp(exported: export.Exported, name: str) -> export.Exported:
    try:
        return vjp_of(exported)
    except NOT_DIFFERENTIABLE as error:
        if isinstance(error, InteropError):
            raise
        raise StructureError(
            f"{name} has no gradient of that order: {error}. To do: serialize it with vjp_order=, "
            "or save it with gradient_order= of at least as much."
        ) from error


def _parameters(known: _KnownSource) -> dict[int, tuple[str, Array]]:
    """Return the name and array of each leaf of the parameters, by the index of its argument."""
    call = known.call
    leaves, tree = flatten(known.params, where="params")
    names = unique_names("/".join(path) or "params" for path in key_names(tree))
    _check_structure(call, tree)
    parameters = {}
    for index, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        if index in known.state:
            continue
        spec = call.args[index]
        array = _to_array(leaf, name)
        # What JAX makes of a number, or of 64 bits while it has none.
        if str(narrow_dtype(array.dtype)) == spec.dtype.name:
            array = narrow_array(array, f"The parameter {name}")
        # The dtype before casts at the boundary; that of the array behind typed PRNG keys.
        dtype = spec.dtype.numpy
        if known.exported and storage_dtype_of(known.exported.in_avals[index].dtype) is not None:
            dtype = known.exported.in_avals[index].dtype
        if array.shape != spec.shape or array.dtype != dtype:
            expected = f"{dtype.name}{str(spec).removeprefix(spec.dtype.name)}"
            raise StructureError(
                f"The parameter {name} is {array.dtype}{list(array.shape)}; {call.name} was "
                f"exported for {expected} at {spec.path}. To do: pass the parameters that it was "
                "exported with."
            )
        parameters[index] = (name, array.astype(spec.dtype.numpy, copy=False))
    return parameters


def _to_array(leaf: Any, name: str) -> Array:
    """The array of a leaf; typed PRNG keys as their key data."""
    leaf = to_physical(leaf)
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float)):
        raise StructureError(
            f"The parameter {name} is a {type(leaf).__name__}; expected a JAX or numpy array, or "
            "a number."
        )
    try:
        return np.asarray(leaf)
    except RuntimeError as error:  # it was donated
        raise StructureError(
            f"The parameter {name} has been deleted: {error} To do: pass what the function "
            "returned, or leave out donate_argnums."
        ) from error


def _check_structure(call: CallModule, tree: Any) -> None:
    leaves = tree.num_leaves
    if _is_vjp(call) and leaves <= len(call.results):  # the parameters are its first primals
        return
    first = sum(spec.path.startswith("args[0]") for spec in call.args)
    if first != leaves:
        raise StructureError(
            f"params has the structure {tree} of {leaves} arrays; the first positional argument of "
            f"{call.name} has {first}. To do: export a function whose first argument is the "
            "parameters, or leave params out."
        )
