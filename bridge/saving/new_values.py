"""New values for the variables of a file that is there: which leaf is for which variable.

A leaf belongs to the variable at its path in the `params` of the file; where the file has none, as
those of other writers, to the one of that name, of that path in the object graph, or of that key in
the checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from jax import tree_util

from bridge.core.keys import is_key
from bridge.core.trees import key_names
from bridge.exporting.framework_modules import from_module
from bridge.exporting.plain_parameters import PlainParameters, is_plain
from bridge.inspecting.wording import counted
from bridge.saving.parameters import to_variables
from savedmodel.decode.objects import VALUE
from savedmodel.encode.objects import OBJECT_GRAPH_KEY
from savedmodel.files.model_folder import ModelFolder
from savedmodel.model import SavedModel, Variable
from savedmodel.protos.structures import Leaf, Structure
from savedmodel.read import checkpoint_names, read
from savedmodel.variables.bundle_layout import BundleTensor
from savedmodel.variables.tensor_bundle import BundleIndex
from savedmodel.write import to_tensor
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import aval_text
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import DtypeError, InteropError, StructureError

_MAX_SHOWN = 5
# How a pytree of nnx leads to the array of a variable.
_NNX_VALUES = frozenset({"value", "raw_value"})


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable of a file, or something else of which the checkpoint has a value.

    Attributes:
        name: the name, if no other variable has it, else the path in the object graph.
        path: the path in the `params` of the file; None for what is not in there.
        aliases: what else it is called.
    """

    name: str
    key: str
    spec: TensorSpec
    path: tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    constant: bool = False

    def __str__(self) -> str:
        """Return the name with dtype and shape."""
        return f"{self.name} {aval_text(self.spec.dtype.name, self.spec.static_shape or ())}"


def stored_variables(folder: ModelFolder, index: BundleIndex) -> tuple[StoredVariable, ...]:
    """Return what the checkpoint of a SavedModel has values of, with all its names.

    Left out are strings, and other dtypes that JAX does not have.
    """
    names = checkpoint_names(folder, index)
    times = Counter(names.values())
    named = Counter(name for name, _ in names.values())
    variables = []
    for key, entry in index.entries.items():
        if key.startswith("\0") or key == OBJECT_GRAPH_KEY:  # a slice of another entry
            continue
        path = key.removesuffix(VALUE)
        name, is_captured = names.get(key, (path, True))
        with contextlib.suppress(DtypeError):
            dtype = dtype_from_tensorflow(entry.dtype, where=key)
            # Keras keeps a copy of each variable that no function takes, under the same name.
            is_only = named[name] < 2 or (is_captured and times[name, True] < 2)
            is_meant = is_captured or not times[name, True]
            aliases = (name, f"{name}:0") if is_meant else ()
            spec = TensorSpec(entry.shape, dtype, key)
            variables.append(
                StoredVariable(name if is_only else path, key, spec, aliases=(key, path, *aliases))
            )
    # Of other writers' files there may be no calls to read, and no params.
    with contextlib.suppress(InteropError):
        return _with_params(variables, read(folder))
    return tuple(variables)


def _with_params(
    variables: Sequence[StoredVariable], model: SavedModel
) -> tuple[StoredVariable, ...]:
    """Add what the calls of the file and its `params` say of its variables."""
    numbers = {variable.key: number for number, variable in enumerate(model.variables)}
    paths = dict(_paths(model.params, ()))
    bound = [
        (number, signature.function.call, index)
        for signature in model.signatures
        for index, number in signature.function.bound.items()
    ]
    elements = {number: call.args[index].element for number, call, index in bound}
    return tuple(
        stored
        if (number := numbers.get(stored.key.removesuffix(VALUE))) is None
        else replace(
            stored,
            spec=replace(stored.spec, element=elements.get(number, "")),
            path=paths.get(number),
            constant=model.variables[number].constant,
        )
        for stored in variables
    )


def _paths(structure: Structure, path: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    if isinstance(structure, Leaf):
        yield structure.index, path
        return
    for name, child in structure.children:
        yield from _paths(child, (*path, name))


def new_tensors(
    params: Any, variables: Sequence[StoredVariable], *, where: str, is_split: bool = False
) -> dict[str, BundleTensor]:
    """Return what is to be written of new values, by the names of the variables."""
    given = _match(params, variables, where, is_split=is_split)
    names = sorted(given)
    specs = [given[name][0].spec for name in names]
    values = to_variables({name: given[name][1] for name in names}, True, specs)
    for name, value in zip(names, values, strict=True):
        _check(given[name][0], value, given[name][1], where)
    return {
        name: to_tensor(value, given[name][0].key)
        for name, value in zip(names, values, strict=True)
    }


def _match(
    params: Any, variables: Sequence[StoredVariable], where: str, *, is_split: bool
) -> dict[str, tuple[StoredVariable, Any]]:
    find = _Finder.of(variables, is_split=is_split)
    given: dict[str, tuple[StoredVariable, Any]] = {}
    unknown: list[str] = []
    for path, leaf, is_array in _leaves(params):
        text = "/".join(path) or "params"
        matches = find(path)
        if len(matches) > 1:
            raise StructureError(
                f"params has a leaf {text!r}, and {where} has several variables of that name: "
                f"{', '.join(sorted(v.key for v in matches))}. To do: pass it under one of these "
                "keys."
            )
        if matches and (name := matches[0].name) in given:
            raise StructureError(
                f"Two leaves of params are for the variable {name} of {where}, the second at "
                f"{text!r}. To do: pass one."
            )
        if matches:
            given[name] = (matches[0], leaf)
        elif is_array:
            unknown.append(text)
    if unknown:
        raise _no_variables(unknown, variables, where)
    if not given:
        raise StructureError("params has no arrays. To do: pass those that are new.")
    return given


def _leaves(params: Any) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """Yield the leaves with their paths as `save` has them, and whether each is an array.

    What is none in the pytree of a class, such as a name, is no variable of what `save` writes.
    """
    equinox = sys.modules.get("equinox")
    is_equinox = equinox is not None and isinstance(params, equinox.Module)
    module = None if is_equinox else from_module(params)
    tree = params if module is None else module.params
    leaves, structure = tree_util.tree_flatten(tree)
    paths = key_names(structure)
    if is_plain(tree):
        yield from zip(paths, leaves, itertools.repeat(True))
        return
    plain = PlainParameters.of(tree)
    arrays = iter(plain.paths)
    for path, leaf, is_array in zip(paths, leaves, plain.is_array, strict=True):
        yield (next(arrays) if is_array else path), leaf, is_array


@dataclass(frozen=True, slots=True)
class _Finder:
    """The variables by their paths in `params`, and by their other names."""

    paths: Mapping[tuple[str, ...], StoredVariable]
    names: Mapping[str, Mapping[str, StoredVariable]]

    @classmethod
    def of(cls, variables: Sequence[StoredVariable], *, is_split: bool) -> _Finder:
        names: dict[str, dict[str, StoredVariable]] = defaultdict(dict)
        for variable in variables:
            joined = () if variable.path is None else ("/".join(variable.path),)
            for alias in (variable.name, *variable.aliases, *joined):
                names[alias][variable.key] = variable
        paths = {v.path: v for v in variables if v.path is not None and not is_split}
        return cls(paths, names)

    def __call__(self, path: tuple[str, ...]) -> list[StoredVariable]:
        if path in self.paths:
            return [self.paths[path]]
        candidates = [*self.names.get("/".join(path) or "params", {}).values()]
        if not candidates and path[-1:] and path[-1] in _NNX_VALUES:
            return self(path[:-1])
        return candidates


def _no_variables(
    unknown: Sequence[str], variables: Sequence[StoredVariable], where: str
) -> StructureError:
    known = [variable.name for variable in variables if not variable.constant]
    if not known:
        return StructureError(
            f"{where} has no variables: its arrays are constants in the graph. To do: save the "
            "function with params=, and update that file."
        )
    leaves = "a leaf" if len(unknown) == 1 else f"{len(unknown)} leaves"
    close = get_close_matches(unknown[0], known, n=_MAX_SHOWN, cutoff=0.3)
    cure = f"such as {_listed(close)}" if close else f"which are {_listed(known)}"
    return StructureError(
        f"params has {leaves} for which {where} has no variable: {_listed(unknown)}. To do: pass "
        f"leaves at the paths of its {counted(len(known), 'variable')}, {cure}; or, where more "
        "than the values has changed, save the model again."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MAX_SHOWN]))
    return f"{shown}, …" if len(names) > _MAX_SHOWN else shown


def _check(stored: StoredVariable, new: Variable, leaf: Any, where: str) -> None:
    """Refuse a value of another dtype or shape."""
    text = f"params has {new.name} as {aval_text(new.dtype.name, new.shape)}, and {where} has "
    if stored.spec.element and is_key(leaf) and str(leaf.dtype) != stored.spec.element:
        raise DtypeError(
            f"params has {new.name} as {leaf.dtype}, and {where} has {stored.spec.element}. To do: "
            "pass a key of the same implementation."
        )
    if new.dtype != stored.spec.dtype:
        raise DtypeError(
            f"{text}{stored}. To do: cast it to {stored.spec.dtype.name}, or save the model again "
            "with it."
        )
    if new.shape != stored.spec.shape:
        raise StructureError(
            f"{text}{stored}. To do: pass a value of that shape, or save the model again with it."
        )
