"""Which `Exported` a signature of a file is, and which variables are its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax import export, tree_util

from bridge.adopting import export_wiring, input_order, to_results
from bridge.restore import restore
from bridge.trees import key_names, unique_names
from savedmodel.model import SavedModel, Signature
from savedmodel.structures import NONE, Leaf, Structure
from savedmodel.wiring import Input, Parameter, Wiring
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
    disabled_checks: tuple[DisabledCheck, ...],
) -> Binding:
    """The function behind a signature.

    Args:
        signature: one of `model`.
        model: the file.
        disabled_checks: safety checks that are not in force besides those of the calls.

    Raises:
        InteropError: see `restore`.
    """
    wiring = signature.wiring
    assert wiring is not None, "the file was read"
    if not _describes_itself(signature, wiring):
        return _bind_wiring(wiring, model, disabled_checks)
    function = signature.function
    exported = restore(
        function.chain,
        lambda key: model.variables[function.constants[key]].mapped(),
        disabled_checks,
    )
    params = _params_tree(exported, signature, model)
    if params is None and function.bound:
        return _bind_wiring(wiring, model, disabled_checks)
    variables: tuple[int | None, ...] = ()
    if params is not None:
        by_path = dict(_paths(model.params))
        bound = signature.function.bound
        variables = tuple(
            bound.get(index, by_path.get(path)) for index, path in enumerate(key_names(params))
        )
    return Binding(exported, params, variables, signature.inputs, signature.outputs)


def _describes_itself(signature: Signature, wiring: Wiring) -> bool:
    """Whether the signature is one call with its own `Exported`, and nothing around it."""
    invocations = wiring.invocations()
    return (
        len(invocations) == 1
        and bool(signature.function.call.exported)
        and signature.outputs.keys() == wiring.outputs.keys()
        and all(isinstance(value, Input | Parameter) for value in invocations[0].operands)
        and len(set(wiring.outputs.values())) == len(signature.function.call.own_results)
    )


def _bind_wiring(
    wiring: Wiring,
    model: SavedModel,
    disabled_checks: tuple[DisabledCheck, ...],
) -> Binding:
    """The function behind a signature that TensorFlow made: the inputs are its arguments."""
    chosen = _parameters(wiring, model)
    texts = unique_names(model.variables[v].key or model.variables[v].name for v in chosen)
    names = dict(zip(chosen, texts, strict=True))
    exported = export_wiring(wiring, names, model.variables, disabled_checks)
    by_name = sorted(names, key=names.__getitem__)
    inputs = dict(zip(input_order(wiring), range(len(names), len(exported.in_avals)), strict=True))
    outputs = to_results({name: name for name in wiring.outputs})
    return Binding(
        exported=exported,
        params=tree_util.tree_structure(dict.fromkeys(texts, 0)) if names else None,
        variables=tuple(by_name),
        inputs=inputs,
        outputs={name: index for index, name in enumerate(tree_util.tree_leaves(outputs))},
    )


def _parameters(wiring: Wiring, model: SavedModel) -> list[int]:
    """The variables that are passed to calls and are no constants."""
    hoisted = {
        id(operand)
        for invocation in wiring.invocations()
        for index, operand in zip(invocation.call.kept, invocation.operands, strict=True)
        if index in invocation.call.constants
    }
    found = (
        value.variable
        for value in wiring.values()
        if isinstance(value, Parameter) and id(value) not in hoisted
    )
    return [v for v in dict.fromkeys(found) if not model.variables[v].constant]


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
