"""A signature of a file -> its `Exported`, bound to the variables that are its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from jax import export, tree_util
from jax.sharding import Mesh

from bridge.core.names import input_names, output_names
from bridge.core.trees import key_names, unique_names
from bridge.loading.calling import MappableExported
from bridge.loading.exported_from_call import export_signature, input_order, to_results
from bridge.loading.exported_on_mesh import remesh
from bridge.loading.restore import find_constants, restore
from savedmodel.model import Input, Parameter, SavedModel, Signature
from savedmodel.protos.structures import NONE, Leaf, Structure
from xla_call_module.checks import DisabledCheck


@dataclass(frozen=True, slots=True)
class BoundExported:
    """An `Exported`, and which of its arguments are variables of a file.

    It is to JAX what `savedmodel.Function` is to TensorFlow.

    Attributes:
        exported: the function, on the mesh that it was loaded for; its first positional argument is
            the parameters, if it has any.
        params: the structure of the parameters; None if there are none.
        variables: for each leaf of the parameters the index of its variable; None for one whose
            value nothing depends on, and that is not in the file.
        inputs: for each input name of the signature the index into the flat arguments.
        outputs: for each output name the index into the flat results.
        assigned: for the index of each flat result that is assigned to a variable the index of
            that.
        taken: the flat arguments that the function or one of its gradients takes.
    """

    exported: export.Exported
    params: tree_util.PyTreeDef | None
    variables: tuple[int | None, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    assigned: Mapping[int, int]
    taken: Container[int]


def bind(
    signature: Signature,
    model: SavedModel,
    disabled_checks: tuple[DisabledCheck, ...],
    mesh: Mesh | None = None,
) -> BoundExported:
    """Return the function behind a signature, bound to the variables of its file."""
    bound = _bind_chain(signature, model, disabled_checks)
    if bound is None:
        bound = _bind_values(signature, model, disabled_checks, mesh)
    on_mesh = MappableExported.of(remesh(bound.exported, mesh))
    return dataclasses.replace(bound, exported=on_mesh)


def _bind_chain(
    signature: Signature, model: SavedModel, disabled_checks: tuple[DisabledCheck, ...]
) -> BoundExported | None:
    """Return the function of a signature that is one call and describes itself, or None."""
    if not _describes_itself(signature, model):
        return None
    function = signature.function
    known = {key: model.variables[index].shared for key, index in function.constants.items()}
    constant = find_constants(function.chain, known, model)
    exported = restore(function.chain, constant, disabled_checks)
    params = _params_tree(exported, signature, model)
    if params is None and function.bound:
        return None
    return BoundExported(
        exported=exported,
        params=params,
        variables=() if params is None else _variables_of(params, signature, model),
        inputs=signature.inputs,
        outputs=signature.outputs,
        assigned=function.assigned,
        taken=frozenset(index for call in function.chain for index in call.kept),
    )


def _variables_of(
    params: tree_util.PyTreeDef, signature: Signature, model: SavedModel
) -> tuple[int | None, ...]:
    """Return for each leaf of the parameters the index of its variable.

    What the module takes is bound to it. For what it does not take the object graph tells, which
    names the variables by the same paths.
    """
    bound, by_path = signature.function.bound, dict(_paths(model.params))
    variables: list[int | None] = []
    for index, path in enumerate(key_names(params)):
        known = bound.get(index, by_path.get(path))
        if index not in bound and known is not None:
            variable, spec = model.variables[known], signature.function.call.args[index]
            fits = (variable.shape, variable.dtype) == (spec.shape, spec.dtype)
            known = known if fits and known not in bound.values() else None
        variables.append(known)
    return tuple(variables)


def _describes_itself(signature: Signature, model: SavedModel) -> bool:
    """Return whether the signature is one call with its own `Exported`, and nothing around it."""
    call = signature.function.call
    if not signature.is_one_function or not call.exported:
        return False
    names = [value.name for value in signature.function.operands if isinstance(value, Input)]
    unused = set(range(len(call.own_args))) - set(call.kept)
    return (
        len(names) == len(set(names))
        and len(signature.input_specs) - len(names) <= len(unused)
        and sorted([*signature.outputs.values(), *signature.function.assigned])
        == list(range(len(call.own_results)))
        and (_is_recorded(signature, model) or _names_fit(signature))
    )


def _is_recorded(signature: Signature, model: SavedModel) -> bool:
    """Return whether the file is as written: what TensorFlow saves again has no such record."""
    return signature.key in model.metadata.get("signatures", {})


def _names_fit(signature: Signature) -> bool:
    """Return whether no input or output has the name that another one had in the file as written.

    A function around the call may have swapped them.
    """
    call = signature.function.call
    given = {index: name for name, index in signature.inputs.items()}
    free = sorted(given)
    usual = dict(zip(input_names(signature.key, call, free, None), free, strict=True))
    left = [i for i in range(len(call.own_results)) if i not in signature.function.assigned]
    names = output_names(signature.key, call, None, left) if left else []
    results = dict(zip(names, left, strict=True))
    return all(usual.get(name, index) == index for name, index in signature.inputs.items()) and all(
        results.get(name, index) == index for name, index in signature.outputs.items()
    )


def _bind_values(
    signature: Signature,
    model: SavedModel,
    disabled_checks: tuple[DisabledCheck, ...],
    mesh: Mesh | None,
) -> BoundExported:
    """Return the function of a signature that TensorFlow made: the inputs are its arguments."""
    chosen = _parameters(signature, model)
    texts = unique_names(model.variables[v].key or model.variables[v].name for v in chosen)
    # JAX has the leaves of a dict in the order of its keys.
    names = dict(sorted(zip(chosen, texts, strict=True), key=lambda pair: pair[1]))
    axes = None if mesh is None else mesh.abstract_mesh
    exported = export_signature(signature, names, model, disabled_checks, axes)
    first = len(names)
    results = tree_util.tree_leaves(
        to_results(
            {name: name for name in signature.output_values},
            {names[variable]: variable for variable in signature.assigned_variables},
        )
    )
    places = {result: index for index, result in enumerate(results)}
    return BoundExported(
        # What JAX has just exported has structures of a registry that `jit` has to itself.
        exported=dataclasses.replace(
            exported,
            in_tree=_of_default_registry(exported.in_tree),
            out_tree=_of_default_registry(exported.out_tree),
        ),
        params=tree_util.tree_structure(dict.fromkeys(texts, 0)) if names else None,
        variables=tuple(names),
        inputs={name: index for index, name in enumerate(input_order(signature), first)},
        outputs={name: places[name] for name in signature.output_values},
        assigned={places[variable]: variable for variable in signature.assigned_variables},
        taken=range(len(exported.in_avals)),
    )


def _of_default_registry(tree: tree_util.PyTreeDef) -> tree_util.PyTreeDef:
    """Return the same structure of JAX's own containers, in the registry that others are in."""
    return tree_util.tree_structure(tree_util.tree_unflatten(tree, range(tree.num_leaves)))


def _parameters(signature: Signature, model: SavedModel) -> list[int]:
    """Return the indices of the variables that are passed to calls or assigned, but constants."""
    hoisted = {
        id(operand)
        for function in signature.functions
        for index, operand in function.passed.items()
        if index in function.call.constants
    }
    passed = (
        value.variable
        for value in signature.values()
        if isinstance(value, Parameter) and id(value) not in hoisted
    )
    used = dict.fromkeys((*passed, *signature.assigned_variables))
    return [v for v in used if not model.variables[v].constant]


def _params_tree(
    exported: export.Exported, signature: Signature, model: SavedModel
) -> tree_util.PyTreeDef | None:
    """Return the structure of the first argument, if variables of the file are bound to it."""
    bound = signature.function.bound
    in_tree: Any = exported.in_tree  # the stub of its class lacks `children`
    first = in_tree.children()[0].children()[:1]
    if not first or (not bound and model.params == NONE):
        given = model.metadata.get("params") is True and first and not first[0].num_leaves
        return first[0] if given else None
    leaves = range(first[0].num_leaves)
    own = set(bound) <= set(leaves) and not set(signature.inputs.values()) & set(leaves)
    return first[0] if own else None


def _paths(structure: Structure, path: tuple[str, ...] = ()) -> Any:
    """Yield for each leaf the keys that lead to it, and the index of its variable."""
    if isinstance(structure, Leaf):
        yield path, structure.index
        return
    for key, child in structure.children:
        yield from _paths(child, (*path, key))
