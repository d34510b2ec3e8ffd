"""Which `Exported` a signature of a file is, and which variables are its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import export, tree_util

from bridge.restore import restore
from bridge.trees import key_names
from savedmodel.model import SavedModel, Signature
from savedmodel.structures import NONE, Leaf, Structure
from xla_call_module.checks import DisabledCheck

__all__ = ["Binding", "bind"]


@dataclass(frozen=True, slots=True)
class Binding:
    """A function of parameters and inputs.

    Attributes:
        exported: the function; its first positional argument is the parameters, if it has any.
        params: the structure of the parameters; None if there are none.
        variables: for each leaf of the parameters the index of its variable; None for one whose
            value nothing depends on, and that is not in the file.
        inputs: for each input name of the signature the index into the flat arguments.
        outputs: for each output name the index into the flat results.
    """

    exported: export.Exported
    params: tree_util.PyTreeDef | None
    variables: tuple[int | None, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def bind(
    signature: Signature,
    model: SavedModel,
    constant: Callable[[str], np.ndarray[Any, Any]],
    disabled_checks: tuple[DisabledCheck, ...],
) -> Binding:
    """The function behind a signature.

    Args:
        signature: one of `model`.
        model: the file.
        constant: the value of a hoisted constant by its key.
        disabled_checks: safety checks that are not in force besides those of the calls.

    Raises:
        InteropError: see `restore`.
    """
    exported = restore(signature.function.chain, constant, disabled_checks)
    params = _params_tree(exported, signature, model)
    variables: tuple[int | None, ...] = ()
    if params is not None:
        by_path = dict(_paths(model.params))
        bound = signature.function.bound
        variables = tuple(
            bound.get(index, by_path.get(path)) for index, path in enumerate(key_names(params))
        )
    return Binding(exported, params, variables, signature.inputs, signature.outputs)


def _params_tree(
    exported: export.Exported, signature: Signature, model: SavedModel
) -> tree_util.PyTreeDef | None:
    """The structure of the first positional argument, if variables of the file are bound to it."""
    bound = signature.function.bound
    in_tree: Any = exported.in_tree  # the stub of its class lacks `children`
    first = in_tree.children()[0].children()[:1]
    if not first or (not bound and model.params == NONE):
        return None
    leaves = range(first[0].num_leaves)
    own = set(bound) <= set(leaves) and not set(signature.inputs.values()) & set(leaves)
    return first[0] if own else None


def _paths(structure: Structure, path: tuple[str, ...] = ()) -> Any:
    """For each leaf the keys that lead to it, and the index of its variable."""
    if isinstance(structure, Leaf):
        yield path, structure.index
        return
    for key, child in structure.children:
        yield from _paths(child, (*path, key))
