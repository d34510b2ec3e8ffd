"""Arguments of a Keras layer -> what it computes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from bridge.chains.orders import check_order
from bridge.core.explaining import flatten
from bridge.layers.artifact import LayerWeight
from bridge.layers.computation import LayerComputation
from bridge.layers.layer_state import hold
from bridge.layers.module import LayerArguments, adapt
from bridge.layers.source import ExportedSource, FunctionSource, read_source, to_source
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import DtypeError, StructureError

__all__ = ["to_computation"]

_DEFAULT = "float32"


def to_computation(
    model: Any,
    *,
    params: Any,
    state: Any,
    rng: Any,
    train: Any,
    trainable: Any,
    dtypes: tuple[str, str],
    gradient_order: int,
) -> LayerComputation:
    """What a layer is made of.

    Args:
        model: an Exported, a function, or the path of a SavedModel.
        params: as of `hold`.
        state: as of `hold`.
        rng: as of `hold`.
        train: an Exported or a function; of a path also the key of a signature.
        trainable: as of `hold`.
        dtypes: in which the layer computes, and of which its variables are.
        gradient_order: how many times it can be differentiated.

    Raises:
        InteropError: they do not fit together, or cannot cross.
    """
    check_order(gradient_order)
    source: ExportedSource | FunctionSource
    if isinstance(model, (str, os.PathLike)):
        source, in_file, flags = read_source(model, train)
        if params is None:
            params, trainable = in_file, flags if trainable is True else trainable
        variables, params = _unwrapped(params)
    else:
        variables, values = _unwrapped(params)
        given = LayerArguments(model, train, values, trainable)
        adapted = adapt(given, {"state": state, "rng": rng})
        _check_shared(variables, values, adapted.params)
        params, trainable = adapted.params, adapted.trainable
        source = to_source(adapted.model, adapted.train)
    states, state = _unwrapped(state)
    shared = variables | {len(tree_util.tree_leaves(params)) + i: v for i, v in states.items()}
    held = hold(params, state, rng, trainable)
    if isinstance(source, FunctionSource) and dtypes != (_DEFAULT, _DEFAULT):
        _check_widths(dtypes)
        held = dataclasses.replace(held, compute_dtype=dtypes[0], variable_dtype=dtypes[1])
    found = held.variables()
    weights = tuple(LayerWeight(v.name, v.dtype, v.shape, v.trainable) for v in found)
    values = tuple(variable.to_numpy() for variable in found)
    if isinstance(source, ExportedSource):
        _check_policy(source, dtypes[0])
        artifact, constants = source.to_artifact(held, gradient_order)
        return LayerComputation(
            weights=weights, values=values, artifact=artifact, constants=constants, shared=shared
        )

    def export_for_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return source.to_exported(held, args, kwargs).to_artifact(held, gradient_order)

    return LayerComputation(
        weights=weights,
        values=values,
        export=export_for_inputs,
        shared=shared,
        trees=held.structures(),
    )


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
            "params has variables in containers that are no dicts, lists or tuples. To do: share "
            "the weights of a layer by passing its params as they are."
        )


def _unwrapped(tree: Any) -> tuple[dict[int, Any], Any]:
    """The variables among the leaves by their index, and the pytree with values instead."""
    leaves, structure = flatten(tree, where="What a layer holds")
    found = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "assign")}
    values = [np.asarray(leaf) if i in found else leaf for i, leaf in enumerate(leaves)]
    return found, tree_util.tree_unflatten(structure, values)


def _check_policy(source: ExportedSource, compute_dtype: str) -> None:
    """Refuse a dtype policy that asks for another dtype than the functions were exported in."""
    if compute_dtype == _DEFAULT:
        return
    exported = source.inference
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
