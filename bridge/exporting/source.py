"""The one front door: whatever a user hands over becomes a `Source`, with its names and variables.

function, module of a framework, stage    export_model.py ──┐
Exported, or a file or bytes of one       exported_file.py ─┤
StableHLO: CallModule, file, bytes, text  mlir_files.py ────┼──> Source
SavedModel: folder, LoadedModel, LoadedSignature ───────────┘
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jax import export, tree_util

from bridge.core.explaining import refusing_unsortable_keys
from bridge.core.keys import to_physical
from bridge.core.trees import key_names, unique_names
from bridge.core.updates import UpdatePositions, find_assigned
from bridge.exporting.boundary_casts import call_of_storage_file, with_boundary_casts
from bridge.exporting.export_model import export_model
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from savedmodel.files.model_folder import read_file
from savedmodel.model import DEFAULT_SIGNATURE, SavedModel, Variable
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import PlatformError, StructureError
from xla_call_module.exported import from_exported, parse_exported
from xla_call_module.mlir_files import is_mlir, with_signature

_MAX_FILE_BYTES = 1 << 32

# What has been exported, opened; and the files and bytes that hold it.
Opened = export.Exported | CallModule | LoadedModel | LoadedSignature
Exportable = Opened | str | bytes | bytearray | os.PathLike[str]
_EXPORTED = (
    export.Exported, CallModule, LoadedModel, LoadedSignature, str, bytes, bytearray, os.PathLike,
)  # fmt: skip

# The path and the content of a file of MLIR -> its call.
_MlirReader = Callable[[Path, bytes], CallModule]


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
        """The safety checks that are off: those of TensorFlow's custom calls."""
        return [DisabledCheck("custom_call:ALL")]


@dataclass(frozen=True, slots=True)
class Source:
    """A function as its source has it.

    Attributes:
        call: the function, with casts at its boundary.
        exported: what can be differentiated; None for a module alone.
        params: the pytree that is its first argument; None for none.
        inputs: the names that a file or a module has for arguments, by their index.
        outputs: the names that a file has for results, by their index.
        variables: the names of the variables that are arguments, by their index; those of a
            function are its parameters.
        assigned: for each result that is a new value of a variable the index of its argument.
        file: the value of the file whose variables these are; None for those of a function.
    """

    call: CallModule
    exported: export.Exported | None
    params: Any
    inputs: Mapping[int, str] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)
    variables: Mapping[int, str] = field(default_factory=dict)
    assigned: Mapping[int, int] = field(default_factory=dict)
    file: SavedModel | None = None


def open_model(
    model: Any, *, stand_ins: bool = False, read_mlir: _MlirReader = call_of_storage_file
) -> Any:
    """Return what a path or the bytes of a file stand for, opened; anything else as it is."""
    if isinstance(model, str) and is_mlir(model.encode()):
        model = model.encode()
    if isinstance(model, (bytes, bytearray)):
        path, place, content = Path("program"), "the bytes", bytes(model)
    elif not isinstance(model, (str, os.PathLike)):
        return model
    elif not os.path.isfile(model):
        return LoadedModel(read(model))
    else:
        path, place = Path(model), os.fspath(model)
        content = read_file(path, limit=_MAX_FILE_BYTES)
    if is_mlir(content):
        return read_mlir(path, content)
    return parse_exported(content, place, stand_ins=stand_ins)


def read_source(
    model: Exportable | Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: str,
    updates: UpdatePositions | None = None,
) -> Source:
    """Return a function as its source has it."""
    if not isinstance(model, _EXPORTED):
        source = _export(
            model, format_, params=params, args=args, platform=platform, updates=updates
        )
    elif args is None:
        source = _source_of(open_model(model, stand_ins=True), params, format_)
    else:
        raise StructureError(
            "args= is for a function or a module, and the model is exported already. To do: leave "
            "it out, or pass the function."
        )
    if not updates:
        return source
    if source.file is not None or source.exported is None:
        raise StructureError(
            "updates= is for a function, a module or an Exported: a SavedModel says itself what it "
            "assigns, and StableHLO has no parameters. To do: leave it out."
        )
    return dataclasses.replace(source, assigned=_assigned(source, source.exported, updates))


def _assigned(
    source: Source, exported: export.Exported, updates: UpdatePositions
) -> dict[int, int]:
    """Return for each result that is a new value of a parameter the index of that."""
    call = source.call
    leaves, tree = tree_util.tree_flatten(source.params)
    variables = [
        Variable(name, call.args[index].dtype, np.shape(to_physical(leaves[index])))
        for index, name in source.variables.items()
    ]
    params = None if source.params is None else tree
    return find_assigned(call.name, call.own_results, exported.out_tree, params, updates, variables)


def _export(
    model: Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: Any,
    updates: UpdatePositions | None,
) -> Source:
    """Return a function or a module for one platform, exported as `bridge.save` does it."""
    if isinstance(model, Mapping):
        raise StructureError(
            f"{format_.name} holds one function, and the mapping has {len(model)}. To do: write a "
            "file for each."
        )
    if not isinstance(platform, str):
        raise no_platform(platform, "The function is lowered for it here.")
    with refusing_unsortable_keys("params, args or what the function takes"):
        traced = export_model(
            model, params=params, args=args, platforms=[platform],
            disabled_checks=format_.disabled_checks,
            updates={DEFAULT_SIGNATURE: updates} if updates else None,
        )  # fmt: skip
    assert isinstance(traced.exported, export.Exported)
    source = _of_exported(traced.exported, traced.params, format_)
    first = len(tree_util.tree_leaves(traced.params))
    return dataclasses.replace(source, inputs=dict(enumerate(traced.inputs or (), start=first)))


def _source_of(opened: Opened, params: Any, format_: ModelFormat) -> Source:
    if isinstance(opened, CallModule):
        return Source(with_signature(opened), None, params)
    if isinstance(opened, export.Exported):
        return _of_exported(opened, params, format_)
    signature = default_of(opened) if isinstance(opened, LoadedModel) else opened
    bound = signature.binding
    inputs, outputs = (
        {index: name for name, index in names.items()} for names in (bound.inputs, bound.outputs)
    )
    values = signature.params if params is None else params
    variables, names = bound.variables, signature.variable_names
    leaves = {variable: leaf for leaf, variable in enumerate(variables)}
    return dataclasses.replace(
        _of_exported(signature.exported, values, format_),
        inputs=inputs,
        outputs=outputs,
        variables={
            leaf: names[leaf] or f"state_{variable}"
            for leaf, variable in enumerate(variables)
            if variable is not None
        },
        assigned={result: leaves[variable] for result, variable in bound.assigned.items()},
        file=signature.file,
    )


def default_of(model: LoadedModel) -> LoadedSignature:
    """Return the signature that is meant where none is named."""
    if len(model.signatures) > 1 and DEFAULT_SIGNATURE not in {*model.signatures, *model.others}:
        keys = ", ".join(map(repr, model.signatures))
        raise StructureError(
            f"Which signature is meant? The model has {keys}, and no {DEFAULT_SIGNATURE!r}. To do: "
            "name one, on the command line by --signature, in Python as "
            "bridge.load(path).signatures[...]."
        )
    return model.default


def _of_exported(exported: export.Exported, params: Any, format_: ModelFormat) -> Source:
    names = {} if params is None else dict(enumerate(leaf_names(tree_util.tree_structure(params))))
    return Source(call_of(exported, format_), exported, params, variables=names)


def call_of(exported: export.Exported, format_: ModelFormat) -> CallModule:
    """Return the call, with every custom call that has a rule, whatever TensorFlow has."""
    exported = with_boundary_casts(exported)
    return from_exported(exported, disabled_checks=format_.disabled_checks, carried=False)


def leaf_names(tree: Any) -> list[str]:
    """Return a name for each leaf of the parameters, its pytree path."""
    return unique_names("/".join(path) or "params" for path in key_names(tree))


def no_platform(platform: Any, known: str) -> PlatformError:
    """Return the error for what is no name of a platform; `known` says which there are."""
    return PlatformError(f"platform is {platform!r}; expected the name of one. {known}")
