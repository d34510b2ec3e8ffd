"""The signature of a file that the command `run` calls, whatever the format of the file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax import export, tree_util

from bridge.core.keys import to_logical, to_physical
from bridge.core.names import input_names, output_names
from bridge.exporting.exported_file import call_of_exported
from bridge.exporting.source import default_of, open_model
from bridge.loading.exported_from_call import exported_from_call
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from savedmodel.files.folder import PROTO_FILE
from savedmodel.files.model_folder import newest_version
from savedmodel.files.remote import is_remote
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.read import read
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import symbols
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import (
    FormatError,
    InteropError,
    MissingDependencyError,
    StructureError,
    quote,
)
from xla_call_module.exported import argument_specs
from xla_call_module.stablehlo.refining import accepts_sizes

__all__ = ["Runnable", "open_runnable"]

_ONNX = ".onnx"
_LITERT = ".tflite"


@dataclass(frozen=True, slots=True)
class Runnable:
    """A function that can be called with arrays by name.

    Attributes:
        name: the key of the signature, or the name of the function.
        inputs: the spec of each input; its path is that of the argument.
        defaults: the values of inputs that need not be given.
        call: returns the outputs by their names.
        accepts: returns whether the function takes arrays with these sizes of its dimension
            variables.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, Array]
    call: Callable[[Mapping[str, Array]], dict[str, Array]]
    accepts: Callable[[Mapping[str, int]], bool]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the dimension variables of the inputs, in their order."""
        dims = (dim for spec in self.inputs.values() for dim in spec.shape or ())
        return tuple(dict.fromkeys(name for dim in dims for name in sorted(symbols(dim))))


def open_runnable(path: str, signature: str | None) -> Runnable:
    """Return the function in a file.

    Args:
        path: the folder of a SavedModel, or the one above its versions; or the file of a serialized
            `Exported`, of StableHLO, of an ONNX model, or of a LiteRT model.
        signature: the key of a signature; None for the default one.

    Raises:
        InteropError: it is none of these, is damaged, or has no such signature.
        OSError: it cannot be read.
    """
    if not os.path.isfile(path):
        model = read(_model_folder(path))
        chosen = _signature(LoadedModel(model), path, signature)
        defaults = {s.key: s.defaults for s in model.signatures}
        return _of_signature(chosen, defaults[chosen.key])
    if path.endswith(_LITERT):
        return _of_litert(path, signature)
    if signature is not None:
        raise StructureError(f"{path} is one function. To do: leave out --signature.")
    if path.endswith(_ONNX):
        return _of_onnx(path)
    opened = open_model(path, stand_ins=True)
    return _of_exported(exported_from_call(opened) if isinstance(opened, CallModule) else opened)


def _model_folder(path: str) -> str:
    """Return the folder of the newest version below a base path; any other path as it is."""
    if is_remote(path) or os.path.exists(os.path.join(path, PROTO_FILE)):
        return path
    return newest_version(path) or path


def _signature(model: LoadedModel, path: str, key: str | None) -> LoadedSignature:
    if key is None:
        return default_of(model)
    keys = [*model.signatures]
    if key not in {*keys, *model.others}:
        raise StructureError(
            f"{path} has no signature {key!r}. To do: name one of its signatures: "
            f"{', '.join(keys)}."
        )
    return model.signatures[key]


def _of_signature(signature: LoadedSignature, defaults: Mapping[str, Array]) -> Runnable:
    exported, binding = signature.exported, signature.binding
    specs = argument_specs(exported)

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        given = {
            name: to_logical(array, exported.in_avals[binding.inputs[name]])
            for name, array in arrays.items()
        }
        leaves = tree_util.tree_leaves(signature(**given))
        return _to_arrays({name: leaves[index] for name, index in binding.outputs.items()})

    return Runnable(
        name=signature.key,
        inputs={name: specs[index] for name, index in binding.inputs.items()},
        defaults=defaults,
        call=call,
        accepts=functools.partial(accepts_sizes, call_of_exported(exported)),
    )


def _of_exported(exported: export.Exported) -> Runnable:
    call = call_of_exported(exported)
    specs = argument_specs(exported)
    names = input_names(call.name, call, range(len(specs)), None)

    def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
        leaves = [
            to_logical(arrays[name], aval)
            for name, aval in zip(names, exported.in_avals, strict=True)
        ]
        args, kwargs = tree_util.tree_unflatten(exported.in_tree, leaves)
        try:
            results = exported.call(*args, **kwargs)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            raise StructureError(
                f"JAX cannot call {call.name}, exported for {', '.join(exported.platforms)} and "
                f"{exported.nr_devices} device(s): {quote(error)}. To do: run it where it was "
                "exported for."
            ) from error
        keys = output_names(call.name, call, None)
        return _to_arrays(dict(zip(keys, tree_util.tree_leaves(results), strict=True)))

    return Runnable(
        name=call.name,
        inputs=dict(zip(names, specs, strict=True)),
        defaults={},
        call=run,
        accepts=functools.partial(accepts_sizes, call),
    )


def _to_arrays(results: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.asarray(to_physical(value)) for name, value in results.items()}


def _of_onnx(path: str) -> Runnable:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"To run {path} needs onnxruntime, which is not installed. To do: pip install "
            "onnxruntime."
        ) from error
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        # Each of its errors is a class of its own, below Exception alone.
        raise FormatError(
            f"{path} is no ONNX model that onnxruntime {onnxruntime.__version__} runs: "
            f"{quote(error)}. To do: write it again, or take another onnxruntime."
        ) from error
    outputs = [value.name for value in session.get_outputs()]

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        try:
            results: Sequence[Any] = session.run(None, dict(arrays))
        except Exception as error:
            raise InteropError(
                f"onnxruntime does not run {path}: {quote(error)}. To do: pass arrays that it "
                "takes."
            ) from error
        return {name: np.asarray(value) for name, value in zip(outputs, results, strict=True)}

    return Runnable(
        name=Path(path).stem,
        inputs={value.name: _onnx_spec(value, path) for value in session.get_inputs()},
        defaults={},
        call=call,
        accepts=lambda _: True,  # ONNX has no assertions
    )


def _of_litert(path: str, signature: str | None) -> Runnable:
    from bridge.litert.runtime import Runtime, describe, read_model

    model = read_model(path)
    known = {one.name: one for one in describe(model).signatures}
    key = DEFAULT_SIGNATURE if signature is None and DEFAULT_SIGNATURE in known else signature
    if key is None and len(known) == 1:
        (key,) = known
    if key not in known:
        raise StructureError(
            f"Which signature is meant? {path} has {', '.join(known) or 'none'}. To do: name one "
            "by --signature."
        )

    def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
        with Runtime(model) as runtime:
            return runtime.run(arrays, signature=key)

    return Runnable(
        name=key,
        inputs={
            tensor.name: TensorSpec(
                tuple(
                    size if size >= 0 else f"{tensor.name}_{axis}"
                    for axis, size in enumerate(tensor.shape)
                ),
                dtype_from_name(tensor.dtype, where=f"The input {tensor.name} of {path}"),
                tensor.name,
            )
            for tensor in known[key].inputs
        },
        defaults={},
        call=call,
        accepts=lambda _: True,  # LiteRT has no assertions
    )


def _onnx_spec(value: Any, path: str) -> TensorSpec:
    """Return the spec of an input of a session, whose type reads `tensor(float)`."""
    named = {"float": "float32", "double": "float64"}
    element = str(value.type).removeprefix("tensor(").removesuffix(")")
    dtype = dtype_from_name(named.get(element, element), where=f"The input {value.name} of {path}")
    shape = tuple(
        dim if isinstance(dim, int) else _dimension(dim, f"{value.name}_{axis}")
        for axis, dim in enumerate(value.shape)
    )
    return TensorSpec(shape, dtype, value.name)


def _dimension(dim: Any, name: str) -> str:
    """Return a dimension that is a variable, or an expression of some as this package writes it."""
    try:
        symbols(str(dim))
    except InteropError:
        return name
    return str(dim) if dim else name
