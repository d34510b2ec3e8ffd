"""What a Keras layer holds besides its functions."""

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

__all__ = ["Held", "hold", "seed_of", "shape_of"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a layer holds besides its functions.

    Attributes:
        params: the pytree of the parameters; None if there are none.
        state: the pytree of the state; None if there is none.
        keys: a pytree of PRNG keys; None if the functions take none.
        trainable: a prefix of `params` with bools.
        variable_dtype: of the variables of floating-point parameters; empty for their own.
        compute_dtype: that a function takes these in, and its inputs; empty for their own.
    """

    params: Any = None
    state: Any = None
    keys: Any = None
    trainable: Any = True
    variable_dtype: str = ""
    compute_dtype: str = ""

    @property
    def params_tree(self) -> tree_util.PyTreeDef | None:
        """The structure of the parameters."""
        return None if self.params is None else tree_util.tree_structure(self.params)

    def variables(self) -> tuple[Variable, ...]:
        """The parameters and then the state, with their values."""
        found = []
        for values, trainable, root in (
            (_cast(self.params, self.variable_dtype), self.trainable, "params"),
            (self.state, False, "state"),
        ):
            if values is not None:
                made = to_variables(values, trainable, list(map(_spec_of, _leaves(values))))
                alone = tree_util.treedef_is_leaf(tree_util.tree_structure(values))
                found += [dataclasses.replace(v, name=root) if alone else v for v in made]
        names = unique_names(variable.name for variable in found)
        pairs = zip(found, names, strict=True)
        return tuple(dataclasses.replace(variable, name=name) for variable, name in pairs)

    def structures(self) -> tuple[Structure, Structure]:
        """The pytrees of parameters and state, whose leaves are indices into both together."""
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
    """The parameters, with those that are floating-point numbers as others."""
    if not dtype or params is None:
        return params
    return tree_util.tree_map(lambda leaf: _cast_leaf(leaf, dtype), params)


def _cast_leaf(leaf: Any, dtype: str) -> Any:
    is_float = jax.dtypes.issubdtype(shape_of(leaf).dtype, np.floating)
    return (
        np.asarray(leaf).astype(dtype_from_name(dtype, where="dtype").numpy) if is_float else leaf
    )


def hold(params: Any, state: Any, rng: Any, trainable: Any) -> Held:
    """What the arguments of a layer say that it holds.

    Args:
        params: a pytree of arrays.
        state: a pytree of arrays.
        rng: a pytree of typed keys, of their key data, or of seeds; a single True or a generator of
            seeds stands for one typed key.
        trainable: a prefix of `params` with bools.
    """
    keys = None
    if rng is not None and rng is not False:
        keys = tree_util.tree_map(_to_key, rng)
    return Held(params, state, keys, trainable)


def _to_key(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)) and np.ndim(leaf) > 0:
        return leaf
    if isinstance(leaf, jax.Array) and is_key(leaf):
        return leaf
    return jax.random.key(0)


def seed_of(rng: Any) -> int | None:
    """The seed that a generator begins with; None for one that is chosen at random.

    Args:
        rng: as for `hold`, but no generator.
    """
    first = tree_util.tree_leaves(rng)[0]
    if isinstance(first, bool):
        return None
    words = np.asarray(to_physical(first), np.uint32 if np.ndim(first) else None).reshape(-1)
    seed = 0
    for word in words.tolist():
        seed = seed * 31 + int(word)
    return seed % (1 << 31)


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape of a leaf, and the dtype that JAX gives it."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _spec_of(leaf: Any) -> TensorSpec:
    """What JAX makes of a leaf that is not exported yet."""
    known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
    array = to_physical(leaf) if known else np.zeros(())
    shape = shape_of(array)
    dtype = dtype_from_name(str(shape.dtype), where="a parameter")
    return TensorSpec(shape.shape, dtype, "")


def _leaves(values: Any) -> list[Any]:
    return tree_util.tree_leaves(values)
