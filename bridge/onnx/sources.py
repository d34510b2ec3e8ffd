"""What is converted: an `Exported`, a file or a SavedModel, with its parameters and names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from bridge.chains.vjp import vjp_of
from bridge.core.explaining import flatten
from bridge.core.names import Names, choose_names, input_names, output_names
from bridge.core.narrowing import narrow_array, narrow_dtype
from bridge.core.trees import key_names, to_identifier, unique_names
from bridge.loading.loaded import LoadedModel, LoadedSignature
from bridge.onnx.boundary_casts import with_doors
from bridge.onnx.graph.storage_dtypes import holder_of
from bridge.onnx.mlir_sources import exported_of_call, exported_of_file, is_module
from bridge.onnx.operation_table import CUSTOM_CALLS
from savedmodel.files.model_folder import read_file
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import PlatformError, ShardingError, StructureError, refusing_damage
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.symbolic_shapes import deserialize_exported

__all__ = ["Program", "Source", "program_of"]

# What JAX calls the argument of a VJP (jax/_src/export/_export.py); without it names are plainer.
_OF_VJP = "args_and_out_cts_flat_jax["
_MAX_ARTIFACT_BYTES = 1 << 32

Source = export.Exported | CallModule | LoadedModel | LoadedSignature | str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Program:
    """A function for one platform, and what its arguments and results are called.

    Attributes:
        call: the function.
        parameters: for some of its arguments the name and the array.
        inputs: for each other argument the name, in their order.
        outputs: for each result the name.
    """

    call: CallModule
    parameters: Mapping[int, tuple[str, Array]]
    inputs: Mapping[int, str]
    outputs: tuple[str, ...]


def program_of(
    source: Source,
    *,
    params: Any,
    platform: str,
    inputs: Names | None,
    outputs: Names | None,
    order: int = 0,
) -> Program:
    """The function to convert.

    Args:
        source: an `Exported`, what `bridge.load` returned, one of its signatures, a `CallModule`,
            or the path of a SavedModel, of a serialized `Exported` or of StableHLO.
        params: the pytree that is the first positional argument of the function; None for those of
            the file, if there are any.
        platform: for which of those that it was lowered for.
        inputs: names as for `bridge.save`.
        outputs: the same for the results.
        order: how often it is differentiated first.

    Raises:
        InteropError: it is none of these, is damaged, or does not fit the parameters.
        OSError: a file cannot be read.
    """
    found = _read(source, params)
    exported, params = found.exported, found.params
    call = _call_of(exported)
    parameters = {} if params is None else _parameters(exported, call, params)
    names = _names(call, parameters, found)
    for _ in range(order):
        exported = _vjp(exported)
        call = _call_of(exported)
        names = names.of_gradient()
    free = [index for index in range(len(call.args)) if index not in parameters]
    defaults = [names.arguments[index] for index in free]
    what = f"inputs of {call.name}"
    chosen = choose_names(defaults, inputs, what, ignore_case=False)
    results = choose_names(names.results, outputs, f"outputs of {call.name}", ignore_case=False)
    if shared := set(chosen) & set(results):
        taken = sorted(shared)[0]
        if outputs is not None or inputs is not None:
            raise StructureError(
                f"{taken!r} is both an input and an output of {call.name}, and an ONNX graph has "
                "each name once. To do: take another name."
            )
        results = [f"{name}_output" if name in shared else name for name in results]
    return Program(
        _prepare(call, platform), parameters, dict(zip(free, chosen, strict=True)), tuple(results)
    )


def _call_of(exported: export.Exported) -> CallModule:
    """The call, whatever TensorFlow has of the targets that are known here."""
    known = [name for name in CUSTOM_CALLS if name.encode() in exported.mlir_module_serialized]
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in known]
    return from_exported(with_doors(exported), allow_flat_trees=True, disabled_checks=checks)


@dataclass(frozen=True, slots=True)
class _Names:
    """What the arguments and results of a function are called."""

    arguments: Sequence[str]
    results: Sequence[str]

    def of_gradient(self) -> _Names:
        """The names of its VJP, of the same arguments and of a cotangent for each result."""
        cotangents = [f"{name}_cotangent" for name in self.results]
        gradients = [f"{to_identifier(name, fallback='input')}_gradient" for name in self.arguments]
        return _Names(unique_names([*self.arguments, *cotangents]), unique_names(gradients))


def _names(call: CallModule, parameters: Mapping[int, tuple[str, Array]], found: _Found) -> _Names:
    free = [index for index in range(len(call.args)) if index not in parameters]
    named = dict(zip(free, input_names(call.name, call, free, None), strict=True))
    named |= {index: name for index, name in found.inputs.items() if index in named}
    results = {**dict(enumerate(output_names(call.name, call, None))), **found.outputs}
    if _is_vjp(call):
        primals = len(results)  # a VJP has one result for each argument of its function
        named = {i: f"primal_{i}" if i < primals else f"cotangent_{i - primals}" for i in named}
        results = {index: f"gradient_{index}" for index in results}
    named |= {index: name for index, (name, _) in parameters.items()}
    return _Names([named[i] for i in sorted(named)], [results[i] for i in sorted(results)])


def _is_vjp(call: CallModule) -> bool:
    """Whether JAX made it as the VJP of a function: its arguments are leaves, in their order."""
    return bool(call.operands) and all(spec.name.startswith(_OF_VJP) for spec in call.operands)


def _prepare(call: CallModule, platform: Any) -> CallModule:
    """The call for one platform of one device, without calls of libraries."""
    if not isinstance(platform, str):
        raise PlatformError(
            f"platform is {platform!r}; expected the name of one. {call.name} was lowered for "
            f"{', '.join(call.platforms)}."
        )
    if not call.results:
        raise StructureError(
            f"{call.name} returns no array, and an ONNX model has at least one output. To do: "
            "return something."
        )
    if call.nr_devices != 1:
        raise ShardingError(
            f"{call.name} was exported for {call.nr_devices} devices, and an ONNX model runs on "
            "one. To do: export it without shardings."
        )
    return lower_linalg(select_platforms(call, [platform]), operations=True)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a source has.

    Attributes:
        exported: the function.
        params: the pytree that is its first argument; None for none.
        inputs: names of arguments by their index, where a file has some.
        outputs: names of results by their index.
    """

    exported: export.Exported
    params: Any
    inputs: Mapping[int, str] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)


def _read(source: Source, params: Any) -> _Found:
    if isinstance(source, export.Exported):
        return _Found(source, params)
    if isinstance(source, CallModule):
        return _Found(exported_of_call(source), params)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_file():
            return _Found(_read_artifact(path), params)
        source = LoadedModel(read(source))
    if isinstance(source, LoadedModel):
        source = source.default
    if not isinstance(source, LoadedSignature):
        raise StructureError(
            f"Expected a jax.export.Exported, what bridge.load returns, or a path; got "
            f"{type(source).__name__}. To do: call jax.export.export(jax.jit(f))(*specs) first."
        )
    inputs, outputs = (
        {index: name for name, index in names.items()}
        for names in (source.binding.inputs, source.binding.outputs)
    )
    return _Found(source.exported, source.params if params is None else params, inputs, outputs)


def _read_artifact(path: Path) -> export.Exported:
    found = read_file(path, limit=_MAX_ARTIFACT_BYTES)
    if is_module(found):
        return exported_of_file(path, found)
    with refusing_damage(f"{path}, as a serialized Exported"):
        return deserialize_exported(found)


def _vjp(exported: export.Exported) -> export.Exported:
    try:
        return vjp_of(exported)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise StructureError(
            f"{exported.fun_name} has no gradient of that order: {error}. To do: serialize it "
            "with vjp_order=, or save it with gradient_order= of at least as much."
        ) from error


def _parameters(
    exported: export.Exported, call: CallModule, params: Any
) -> dict[int, tuple[str, Array]]:
    """For each leaf of the parameters its name and array."""
    leaves, tree = flatten(params, where="params")
    in_tree: Any = exported.in_tree  # the stub of its class lacks `children`
    names = unique_names("/".join(path) or "params" for path in key_names(tree))
    _check_structure(call, in_tree, tree)
    found = {}
    for index, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        spec = call.args[index]
        array = _to_array(leaf, name)
        # What JAX makes of a number, or of 64 bits while it has none.
        if str(narrow_dtype(array.dtype)) == spec.dtype.name:
            array = narrow_array(array, f"The parameter {name}")
        # Not that of what holds it in the call.
        aval = exported.in_avals[index]
        held = holder_of(aval.dtype) is not None
        dtype = aval.dtype if held else spec.dtype.numpy
        if array.shape != spec.shape or array.dtype != dtype:
            raise StructureError(
                f"The parameter {name} is {array.dtype}{list(array.shape)}; {call.name} was "
                f"exported for {aval if held else spec} at {spec.path}. To do: pass the parameters "
                "that it was exported with."
            )
        found[index] = (name, array.astype(spec.dtype.numpy, copy=False))
    return found


def _to_array(leaf: Any, name: str) -> Array:
    """The array of a leaf; typed PRNG keys as their key data."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
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


def _check_structure(call: CallModule, in_tree: Any, tree: Any) -> None:
    leaves = tree.num_leaves
    if _is_vjp(call) and leaves <= len(call.results):  # the parameters are its first primals
        return
    first: Sequence[Any] = in_tree.children()[0].children()[:1]
    if not first or first[0].num_leaves != leaves:
        raise StructureError(
            f"params has the structure {tree}; the first positional argument of {call.name} has "
            f"{first[0] if first else 'none'}. To do: export a function whose first argument is "
            "the parameters, or leave params out."
        )
