"""`jax.export.Exported`s -> the functions of a Keras layer, as a `LayerArtifact`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import export, tree_util

from bridge.chains.orders import ChainOptions, check_order
from bridge.chains.vjp_chain import build_chain
from bridge.core.keys import is_key
from bridge.core.operations_option import XLA, OperationsOption, parse_operations
from bridge.core.trees import to_structure
from bridge.layers.artifact import LayerArtifact, LayerFunction, LayerWeight
from bridge.layers.layer_state import LayerState, shape_of
from bridge.saving.parameters import check_parameters, check_params_tree
from savedmodel.model import Variable
from savedmodel.protos.structures import Branch, Structure, as_tuple
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import StructureError, VersionError
from xla_call_module.passes.pipeline import Prepared, Target, prepare
from xla_call_module.versions import Release, parse_release

_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class LayerTarget:
    """The consumers of the functions of a layer.

    Attributes:
        gradient_order: the number of times that the layer can be differentiated.
        tensorflow: the oldest TensorFlow that must read the functions; None for as old as they
            allow.
        installed: the imported TensorFlow, which reads them too if it can and `tensorflow` is None;
            None where Keras runs on something else.
        operations: what TensorFlow runs, as for `bridge.save`.
    """

    gradient_order: int = 1
    tensorflow: str | None = None
    installed: Release | None = None
    operations: OperationsOption = XLA

    def __post_init__(self) -> None:
        """Refuse what is no number of orders, no release, or no kind of operations."""
        check_order(self.gradient_order)
        parse_operations(self.operations)
        if self.tensorflow is not None:
            parse_release(self.tensorflow)


def to_artifact(
    exported: export.Exported,
    train: export.Exported | None,
    layer: LayerState,
    target: LayerTarget,
) -> tuple[LayerArtifact, dict[str, Array]]:
    """Return what a layer computes, and the values of its constants."""
    constants: dict[str, Array] = {}
    variables = layer.variables()

    def function(one: export.Exported, *, updates: bool) -> LayerFunction:
        made = _to_function(one, layer, target, constants, updates=updates)
        _check_weights(made, variables, layer.compute_dtype)
        return made

    training = None if train is None else function(train, updates=True)
    inference = function(exported, updates=training is None)
    _check_same_inputs(inference, training)
    functions = [inference, *([training] if training else [])]
    if layer.keys is not None and not any(function.keys for function in functions):
        raise StructureError(
            f"rng is given, and {inference.name} takes no PRNG key after "
            f"{_leading(layer)}. To do: leave rng out, or export a function that takes a key there."
        )
    params, state = layer.structures()
    artifact = LayerArtifact(
        weights=tuple(LayerWeight(v.name, v.dtype, v.shape, v.trainable) for v in variables),
        params=params,
        state=state,
        inference=inference,
        training=training,
        constants=tuple(
            LayerWeight(key, dtype_from_name(str(value.dtype), where=key), value.shape)
            for key, value in constants.items()
        ),
    )
    return artifact, constants


def _to_function(
    exported: export.Exported,
    layer: LayerState,
    target: LayerTarget,
    constants: dict[str, Array],
    *,
    updates: bool,
) -> LayerFunction:
    """Return a function of a layer; the pytrees that the layer holds tell its arguments apart.

    The values of what is taken out of its modules are added to `constants`. With `updates` it has
    to return the new state, if there is one.
    """
    in_tree: Any = exported.in_tree
    positional = in_tree.children()[0].children()
    parameters, state, keys, taken = 0, 0, 0, 0
    tree: Any = layer.params_tree
    if tree is not None:
        check_params_tree(exported, tree)
        parameters, taken = tree.num_leaves, 1
    if layer.state is not None and _is_state(exported, positional[taken:], parameters, layer):
        state, taken = len(tree_util.tree_leaves(layer.state)), taken + 1
    if layer.keys is not None and positional[taken:]:
        count = positional[taken].num_leaves
        avals = exported.in_avals[parameters + state : parameters + state + count]
        if count and all(map(_is_key, avals)):
            keys, taken = count, taken + 1
    outputs, new_state = _results(exported, layer, state, updates=updates)
    chain, _ = build_chain(
        exported,
        ChainOptions(),
        gradient_order=target.gradient_order,
        tensorflow=target.tensorflow,
        known=constants.keys(),
        keeps_trees=False,
    )
    constants |= chain.constants
    if target.tensorflow is None and target.installed is not None:
        chain = _for_installed(chain, target.installed)
    arguments: Any = to_structure(exported.in_tree)
    (_, args), (_, kwargs) = arguments.children
    made = LayerFunction(
        chain=chain.calls,
        parameters=parameters,
        state=state,
        keys=keys,
        inputs=as_tuple([as_tuple([child for _, child in args.children[taken:]]), kwargs]),
        outputs=outputs,
        new_state=new_state,
        plain_operations=parse_operations(target.operations),
    )
    return made.recorded(chain)


def _for_installed(chain: Prepared, release: Release) -> Prepared:
    """Return a chain as the installed TensorFlow reads it, as far as its orders have such a form.

    The forms that suit most releases suit no older one than `KEPT_FOR_ANY`.
    """
    made = Prepared((), chain.constants)
    target = Target(release, for_file=True)
    for call, oldest in zip(chain.calls, chain.releases, strict=True):
        one, is_first = Prepared((call,), {}, (oldest,), chain.shape_check), not made.calls
        if oldest is None or oldest.tensorflow > release.tensorflow:
            with contextlib.suppress(VersionError):  # which says so when TensorFlow is to run it
                one = prepare(call, target, is_first=is_first)
        made += one
    return made


def _is_state(exported: export.Exported, positional: Any, first: int, layer: LayerState) -> bool:
    """Return whether the next argument is the state: it has its structure, shapes and dtypes."""
    tree: Any = tree_util.tree_structure(layer.state)
    if positional[:1] != [tree]:
        return False
    avals = exported.in_avals[first : first + tree.num_leaves]
    return all(map(_is_alike, avals, tree_util.tree_leaves(layer.state)))


def _is_alike(aval: Any, leaf: Any) -> bool:
    shape = shape_of(leaf)
    return (tuple(aval.shape), aval.dtype) == (shape.shape, shape.dtype)


def _is_key(aval: Any) -> bool:
    if is_key(aval):
        return True
    return bool(aval.dtype == np.uint32 and aval.shape and aval.shape[-1] in (2, 4))


def _results(
    exported: export.Exported, layer: LayerState, state: int, *, updates: bool
) -> tuple[Structure, tuple[int, ...]]:
    """Return the outputs, and the indices of the results that are the new state."""
    structure = to_structure(exported.out_tree)
    if layer.state is None:
        return structure, ()
    tree: Any = tree_util.tree_structure(layer.state)
    out_tree: Any = exported.out_tree
    children = out_tree.children()
    is_pair = isinstance(structure, Branch) and structure.kind == "tuple" and len(children) == 2
    if is_pair and children[1] == tree:
        count = len(exported.out_avals)
        indices = range(count - tree.num_leaves, count)
        avals = [exported.out_avals[index] for index in indices]
        if all(map(_is_alike, avals, tree_util.tree_leaves(layer.state))):
            assert isinstance(structure, Branch)
            return structure.children[0][1], tuple(indices)
    if updates:
        raise StructureError(
            f"state is given, and {exported.fun_name} "
            + ("does not take it as its next argument" if not state else f"returns {out_tree}")
            + f"; expected a function of {_leading(layer)} and the inputs that returns (outputs, "
            f"new_state), where new_state has the structure, shapes and dtypes of state: {tree}. "
            "To do: export such a function, or pass what never changes in params, with False in "
            "trainable."
        )
    return structure, ()


def _leading(layer: LayerState) -> str:
    """Return the names of what a function takes before its inputs, for messages."""
    return ", ".join(layer.leading) or "nothing"


def _check_weights(
    function: LayerFunction, variables: Sequence[Variable], compute_dtype: str
) -> None:
    """Refuse parameters that the function was not exported for."""
    if compute_dtype:
        cast = dtype_from_name(compute_dtype, where="dtype")
        variables = [
            dataclasses.replace(v, dtype=cast)
            if index < function.parameters and v.dtype.name in _FLOATS
            else v
            for index, v in enumerate(variables)
        ]
    count = function.parameters + function.state
    check_parameters(function.name, function.specs[:count], variables[:count])


def _check_same_inputs(inference: LayerFunction, training: LayerFunction | None) -> None:
    """Refuse functions that are not called in the same way."""
    if training is None:
        return
    counts = [len(function.specs) - function.first_input for function in (inference, training)]
    if counts[0] != counts[1]:
        raise StructureError(
            f"{inference.name} takes {counts[0]} input(s), and the function for training, "
            f"{training.name}, takes {counts[1]}. To do: export both for the same inputs, after "
            "params, state and rng."
        )
