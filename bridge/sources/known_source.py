"""The source of a model: a function, an `Exported`, or a file, with its names and variables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jax import export, tree_util

from bridge.core.explaining import refusing_unsortable_keys
from bridge.core.exported_file import parse_exported
from bridge.core.keys import to_physical
from bridge.core.narrow_types import NARROW_TYPES
from bridge.core.trees import key_names, unique_names
from bridge.core.updates import UpdatePositions, find_assigned
from bridge.exporting.export_model import export_model
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from bridge.loading.mlir_files import call_of_file, is_mlir, with_signature
from bridge.sources.boundary_casts import cast_at_boundary, with_boundary_casts
from savedmodel.files.model_folder import read_file
from savedmodel.model import DEFAULT_SIGNATURE, SavedModel, Variable
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import (
    PlatformError,
    StructureError,
)
from xla_call_module.exported import from_exported

__all__ = [
    "KnownSource",
    "ModelFormat",
    "Source",
    "call_of",
    "leaf_names",
    "no_platform",
    "read_source",
]

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
class KnownSource:
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


def read_source(
    source: Source | Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: str,
    updates: UpdatePositions | None = None,
) -> KnownSource:
    """Return a function as its source has it.

    Args:
        source: an `Exported`, what `bridge.load` returned, one of its signatures, a `CallModule`,
            the path of a SavedModel, of a serialized `Exported` or of StableHLO; or a function or
            module, which is exported here.
        format_: the format that the call is for.
        params: the pytree that is the first positional argument of the function; None for those of
            the file or the module, if there are any.
        args: where a function or a module is exported here, its arguments, as for `bridge.save`.
        platform: the platform that a function or a module is exported for.
        updates: where the new parameters stand in what a function returns; None for nowhere.

    Raises:
        InteropError: it is none of these, is damaged, or does not fit the parameters.
        OSError: a file cannot be read.
    """
    if not isinstance(source, _SOURCES):
        known = _export(
            source, format_, params=params, args=args, platform=platform, updates=updates
        )
    elif args is None:
        known = _read(source, params, format_)
    else:
        raise StructureError(
            "args= is for a function or a module, and what was passed is exported already. To do: "
            "leave it out, or pass the function."
        )
    if not updates:
        return known
    if known.file is not None or known.exported is None:
        raise StructureError(
            "updates= is for a function, a module or an Exported: a SavedModel says itself what it "
            "assigns, and StableHLO has no parameters. To do: leave it out."
        )
    return dataclasses.replace(known, assigned=_assigned(known, updates))


def _assigned(known: KnownSource, updates: UpdatePositions) -> dict[int, int]:
    """Return for each result that is a new value of a parameter the index of that."""
    assert known.exported is not None
    call = known.call
    leaves, tree = tree_util.tree_flatten(known.params)
    variables = [
        Variable(name, call.args[index].dtype, np.shape(to_physical(leaves[index])))
        for index, name in known.variables.items()
    ]
    has_params = known.params is not None
    return find_assigned(
        call.name, call.own_results, known.exported.out_tree, tree if has_params else None,
        updates, variables,
    )  # fmt: skip


def _export(
    model: Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: Any,
    updates: UpdatePositions | None,
) -> KnownSource:
    """Return a function or a module for one platform, exported as `bridge.save` does it."""
    if isinstance(model, Mapping):
        raise StructureError(
            f"Expected one function, got a mapping of {len(model)}, and {format_.name} is a single "
            "one. To do: pass one of them, and write a file for each."
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
    known = _of_exported(traced.exported, traced.params, format_)
    first = len(tree_util.tree_leaves(traced.params))
    return dataclasses.replace(known, inputs=dict(enumerate(traced.inputs or (), start=first)))


def _read(source: Source, params: Any, format_: ModelFormat) -> KnownSource:
    if isinstance(source, CallModule):
        return KnownSource(with_signature(source), None, params)
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
    variables, names = bound.variables, source.variable_names
    leaves = {variable: leaf for leaf, variable in enumerate(variables)}
    return dataclasses.replace(
        known,
        inputs=inputs,
        outputs=outputs,
        variables={
            leaf: names[leaf] or f"state_{variable}"
            for leaf, variable in enumerate(variables)
            if variable is not None
        },
        assigned={result: leaves[variable] for result, variable in bound.assigned.items()},
        file=source.file,
    )


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


def _read_file(path: Path, params: Any, format_: ModelFormat) -> KnownSource:
    content = read_file(path, limit=_MAX_ARTIFACT_BYTES)
    if is_mlir(content):
        return KnownSource(
            call_of_file(path, content, prepare=cast_at_boundary, prepared=NARROW_TYPES),
            None,
            params,
        )
    exported = parse_exported(content, os.fspath(path), stand_ins=True)
    return _of_exported(exported, params, format_)


def _of_exported(exported: export.Exported, params: Any, format_: ModelFormat) -> KnownSource:
    names = {} if params is None else dict(enumerate(leaf_names(tree_util.tree_structure(params))))
    return KnownSource(call_of(exported, format_), exported, params, variables=names)


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
