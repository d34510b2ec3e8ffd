"""Arguments of a Keras layer -> what it computes.

A function is exported when the layer is first called, for any batch size.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.explaining import arguments_of, flatten
from bridge.core.narrowing import warn_of_narrowing
from bridge.exporting.call_check import Passed
from bridge.exporting.lowering import export_for
from bridge.exporting.specifications import ArgumentSpec, specify
from bridge.layers.artifact import LayerWeight
from bridge.layers.computation import LayerComputation
from bridge.layers.layer_arguments import LayerArguments, parameters_of, read_arguments
from bridge.layers.layer_functions import LayerTarget, to_artifact
from bridge.layers.layer_state import LayerState, shape_of, to_layer_state
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import DtypeError, StructureError
from xla_call_module.platforms import DEFAULT_PLATFORMS

_DEFAULT = "float32"
# What a layer passes before its inputs, and by which of its options.
_OPTIONS = {
    "params": "params= for parameters",
    "state": "state= for a state",
    "rng": "rng=0 for a PRNG key",
}


def to_computation(
    model: Any,
    *,
    params: Any,
    state: Any,
    rng: Any,
    train: Any,
    trainable: Any,
    dtypes: tuple[str, str],
    target: LayerTarget,
) -> LayerComputation:
    """Return the functions of a layer, and the initial values of its variables."""
    variables, values = _unwrapped(params)
    given = read_arguments(model, train, values, trainable, {"state": state, "rng": rng})
    _check_shared(variables, values, given.params)
    warn_of_narrowing(given.params)
    states, state = _unwrapped(state)
    count = len(tree_util.tree_leaves(given.params))
    shared = variables | {count + index: variable for index, variable in states.items()}
    layer = to_layer_state(given.params, state, rng, given.trainable)
    if not given.is_exported and dtypes != (_DEFAULT, _DEFAULT):
        _check_widths(dtypes)
        layer = dataclasses.replace(layer, compute_dtype=dtypes[0], variable_dtype=dtypes[1])
    own = layer.variables()
    weights = tuple(LayerWeight(v.name, v.dtype, v.shape, v.trainable) for v in own)
    values = tuple(variable.to_numpy() for variable in own)
    if given.is_exported:
        _check_policy(given.inference, dtypes[0])
        artifact, constants = to_artifact(given.inference, given.training, layer, target)
        return LayerComputation(
            weights=weights, values=values, artifact=artifact, constants=constants, shared=shared
        )

    def export_for_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return to_artifact(*_export_both(given, layer, args, kwargs), layer, target)
        except TypeError as error:
            if "To do: pass mask, too" not in str(error):
                raise
            said = str(error).partition(" To do: ")[0]
            raise StructureError(
                f"{said} Keras does not pass a mask to a layer of JAX by itself. To do: pass it, "
                "as in layer(x, mask=embedding.compute_mask(tokens)), or give the parameter a "
                "default."
            ) from error

    return LayerComputation(
        weights=weights,
        values=values,
        export=export_for_inputs,
        shared=shared,
        trees=layer.structures(),
        takes_mask="mask" in parameters_of(given.inference),
    )


def _export_both(
    given: LayerArguments, layer: LayerState, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[export.Exported, export.Exported | None]:
    """Return the functions for inference and for training, exported for any batch size."""
    if given.training is None:
        return _export(given.inference, layer, args, kwargs), None
    training = _export(given.training, layer, args, kwargs)
    less = _without_unused(given.inference, layer, args)
    return _export(given.inference, less, args, kwargs), training


def _export(
    function: Callable[..., Any], layer: LayerState, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> export.Exported:
    name = str(getattr(function, "__name__", type(function).__name__))
    leading = tuple(layer.leading.values())
    args = _separate_inputs(function, len(leading), args)
    leaves, tree = flatten((tuple(args), dict(kwargs)), where=f"An input of {name}")
    specs = specify(_for_any_batch(leaves), tree, polymorphic_shapes="auto", constraints=())
    inputs, keywords = tree_util.tree_unflatten(tree, specs)
    own = tree_util.tree_map(shape_of, leading)
    if layer.params is not None and layer.compute_dtype:
        own = (_cast_specs(own[0], layer.compute_dtype), *own[1:])
    jitted = function if isinstance(function, jax.stages.Wrapped) else jax.jit(function)
    try:
        return export_for(
            jitted, (*own, *inputs), keywords, name=name, platforms=DEFAULT_PLATFORMS,
            disabled_checks=(), passed=_passed(layer, inputs, keywords),
        )  # fmt: skip
    except Exception as error:
        names = {cls.__name__ for cls in type(error).__mro__}
        if "InconclusiveDimensionOperation" not in names:
            raise
        raise StructureError(
            f"{name} cannot be exported for every batch size: {error.__cause__} To do: export "
            "it with jax.export.export for the sizes that it is for, with constraints between "
            "symbolic dimensions if need be, and pass the result."
        ) from error


def _passed(layer: LayerState, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Passed:
    """Return how a layer passes the arguments of its function, for messages."""
    own = tuple(layer.leading)
    given = arguments_of(inputs, keywords)
    said = f"the layer passes {', '.join((*own, given))}"
    others = ", ".join(text for name, text in _OPTIONS.items() if name not in own)
    return Passed(said, parameters=own, options=f" ({others} of the layer)" if others else "")


def _without_unused(function: Any, layer: LayerState, args: Sequence[Any]) -> LayerState:
    """Return what a function for inference takes, which may do without keys and state."""
    leading = tuple(layer.leading.values())
    missing = len(leading) + len(_separate_inputs(function, 0, args)) - len(_required(function))
    kinds = {parameter.kind for parameter in parameters_of(function).values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or missing < 1:
        return layer
    without = [name for name in ("keys", "state") if getattr(layer, name) is not None][:missing]
    return dataclasses.replace(
        layer,
        keys=None if "keys" in without else layer.keys,
        state=None if "state" in without else layer.state,
    )


def _required(function: Any) -> list[inspect.Parameter]:
    """Return the positional parameters that have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = parameters_of(function).values()
    return [p for p in parameters if p.kind in kinds and p.default is p.empty]


def _separate_inputs(function: Any, leading: int, args: Sequence[Any]) -> Sequence[Any]:
    """Return the inputs; those of a function of several may come as one list."""
    if len(args) != 1 or not isinstance(args[0], (list, tuple)):
        return args
    wanted = len(_required(function)) - leading
    return args[0] if wanted == len(args[0]) > 1 else args


def _for_any_batch(arguments: Sequence[ArgumentSpec]) -> list[ArgumentSpec]:
    """Return the inputs without the size of a batch, which is dimension 0 of all that have one."""
    sizes = {argument.shape[0] for argument in arguments if argument.shape}
    alike = len(sizes - {None}) < 2
    return [
        dataclasses.replace(
            argument,
            shape=(None, *argument.shape[1:]) if argument.shape and alike else argument.shape,
            dtype=jax.dtypes.canonicalize_dtype(np.dtype(argument.dtype)),
        )
        for argument in arguments
    ]


def _cast_specs(specs: Any, dtype: str) -> Any:
    def cast(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_float = jax.dtypes.issubdtype(spec.dtype, np.floating)
        return jax.ShapeDtypeStruct(spec.shape, dtype) if is_float else spec

    return tree_util.tree_map(cast, specs)


def _check_widths(dtypes: Sequence[str]) -> None:
    """Refuse dtypes that JAX would narrow."""
    for name in dtypes:
        dtype = dtype_from_name(name, where="the layer's dtype policy").numpy
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise DtypeError(
                f"The layer's dtype policy asks for {name}, which JAX makes {_DEFAULT} of while "
                "jax_enable_x64 is off. To do: jax.config.update('jax_enable_x64', True), or pass "
                "dtype='float32' to the layer."
            )


def _check_shared(variables: Mapping[int, Any], given: Any, adapted: Any) -> None:
    """Refuse variables in a pytree whose leaves have changed their places."""
    if variables and adapted is not given:
        raise StructureError(
            "params has variables in containers that are not dicts, lists or tuples. To do: share "
            "the weights of a layer by passing its params as they are."
        )


def _unwrapped(tree: Any) -> tuple[dict[int, Any], Any]:
    """Return the variables among the leaves by their index, and the pytree of their values."""
    leaves, structure = flatten(tree, where="What a layer holds")
    variables = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "assign")}
    values = [np.asarray(leaf) if i in variables else leaf for i, leaf in enumerate(leaves)]
    return variables, tree_util.tree_unflatten(structure, values)


def _check_policy(exported: export.Exported, compute_dtype: str) -> None:
    """Refuse a dtype policy that asks for another dtype than the functions were exported in."""
    if compute_dtype == _DEFAULT:
        return
    dtypes = {str(aval.dtype) for aval in (*exported.in_avals, *exported.out_avals)}
    if compute_dtype in dtypes:
        return
    name = exported.fun_name
    raise DtypeError(
        f"The layer's dtype policy computes in {compute_dtype}, and {name} was exported for other "
        "dtypes, which stay as they are. To do: pass dtype='float32' to the layer, export the "
        f"function for {compute_dtype}, or pass the function itself, which the layer exports in "
        "its own dtype."
    )
