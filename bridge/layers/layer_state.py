"""The pytrees that a Keras layer holds: its parameters, its state and its PRNG keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from bridge.core.keys import is_key, to_physical
from bridge.core.trees import to_structure, unique_names
from bridge.saving.parameters import to_variables
from savedmodel.model import Variable
from savedmodel.protos.structures import NONE, Structure
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class LayerState:
    """The pytrees that a layer holds, and the dtypes of its variables.

    Attributes:
        state: the pytree that training replaces; None if there is none.
        keys: a pytree of PRNG keys; None if the functions take none.
        trainable: a prefix of `params` with bools.
        variable_dtype: the dtype of the variables of floating-point parameters; empty for their
            own.
        compute_dtype: the dtype in which a function takes these and its inputs; empty for their
            own.
    """

    params: Any = None
    state: Any = None
    keys: Any = None
    trainable: Any = True
    variable_dtype: str = ""
    compute_dtype: str = ""

    @property
    def leading(self) -> dict[str, Any]:
        """The arguments of a function before its inputs, by the names that the layer has."""
        values = {"params": self.params, "state": self.state, "rng": self.keys}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def params_tree(self) -> tree_util.PyTreeDef | None:
        """The structure of the parameters, or None."""
        return None if self.params is None else tree_util.tree_structure(self.params)

    def variables(self) -> tuple[Variable, ...]:
        """Return the parameters and then the state, with their values."""
        variables: list[Variable] = []
        for values, trainable, root in (
            (_cast(self.params, self.variable_dtype), self.trainable, "params"),
            (self.state, False, "state"),
        ):
            if values is not None:
                made = to_variables(
                    values, trainable, list(map(_spec_of, tree_util.tree_leaves(values)))
                )
                alone = tree_util.treedef_is_leaf(tree_util.tree_structure(values))
                variables += [dataclasses.replace(v, name=root) if alone else v for v in made]
        names = unique_names(variable.name for variable in variables)
        pairs = zip(variables, names, strict=True)
        return tuple(dataclasses.replace(variable, name=name) for variable, name in pairs)

    def structures(self) -> tuple[Structure, Structure]:
        """Return the pytrees of parameters and state; the leaves are indices into both together."""
        if self.params_tree is None:
            return NONE, NONE if self.state is None else to_structure(
                tree_util.tree_structure(self.state)
            )
        if self.state is None:
            return to_structure(self.params_tree), NONE
        both: Any = to_structure(tree_util.tree_structure((self.params, self.state)))
        (_, params), (_, state) = both.children
        return params, state


def _cast(params: Any, dtype: str) -> Any:
    """Return the parameters, those of floating-point numbers in another dtype."""
    if not dtype or params is None:
        return params
    return tree_util.tree_map(lambda leaf: _cast_leaf(leaf, dtype), params)


def _cast_leaf(leaf: Any, dtype: str) -> Any:
    is_float = jax.dtypes.issubdtype(shape_of(leaf).dtype, np.floating)
    return (
        np.asarray(leaf).astype(dtype_from_name(dtype, where="dtype").numpy) if is_float else leaf
    )


def to_layer_state(params: Any, state: Any, rng: Any, trainable: Any) -> LayerState:
    """Return the pytrees that a layer holds."""
    keys = None
    if rng is not None and rng is not False:
        keys = tree_util.tree_map(_to_key, rng)
    return LayerState(params, state, keys, trainable)


def _to_key(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)) and np.ndim(leaf) > 0:
        return leaf
    if isinstance(leaf, jax.Array) and is_key(leaf):
        return leaf
    return jax.random.key(0)


def seed_of(rng: Any) -> int | None:
    """Return the seed that a generator begins with; None for one that is chosen at random."""
    first, *_ = leaves = tree_util.tree_leaves(rng) or [None]
    for leaf in leaves:
        if np.asarray(to_physical(leaf)).dtype.kind not in "biu":
            raise ArgumentError(
                f"rng has {leaf!r}; expected an integer as a seed, a PRNG key, a pytree of these, "
                "or True. To do: pass one of these."
            )
    if isinstance(first, bool):
        return None
    words = np.asarray(to_physical(first), np.uint32 if np.ndim(first) else None).reshape(-1)
    seed = 0
    for word in words.tolist():
        seed = seed * 31 + int(word)
    return seed % (1 << 31)


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of a leaf, and the dtype that JAX gives it."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _spec_of(leaf: Any) -> TensorSpec:
    """Return the shape and dtype in which JAX takes a leaf that is not exported yet."""
    known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
    array = to_physical(leaf) if known else np.zeros(())
    shape = shape_of(array)
    dtype = dtype_from_name(str(shape.dtype), where="a parameter")
    return TensorSpec(shape.shape, dtype, "")
