"""A pytree of any classes as dicts within dicts, which every program can read.

Modules have leaves that are no arrays, and static data that no file holds; and TensorFlow knows
none of their classes.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from bridge.core.trees import key_names, nest_by_path
from bridge.core.updates import UpdatePositions, is_bare
from bridge.exporting.stored_arrays import StoredArray
from xla_call_module.errors import StructureError
from xla_call_module.pytrees.tree_description import StaticData, describe_tree

_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True)
class PlainParameters:
    """A pytree of any classes, its arrays as dicts within dicts, by the names on their paths.

    Attributes:
        paths: the path of each array in these dicts, in the order of the pytree.
        others: the leaves of the pytree, with None for the arrays.
        is_array: for each leaf of the pytree whether it is an array.
    """

    params: Any
    paths: tuple[tuple[str, ...], ...]
    others: tuple[Any, ...]
    is_array: tuple[bool, ...]
    tree: Any

    @classmethod
    def of(cls, tree: Any, *, without: str | None = None) -> PlainParameters:
        """Arrange a pytree whose leaves are arrays and anything else.

        Numbers are parts of the structure here, as they are in modules. `without` is left out at
        the end of paths, such as the `value` of nnx's variables.
        """
        leaves, structure = tree_util.tree_flatten(tree)
        is_array = tuple(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves)
        paths = [path[:-1] if path[-1:] == (without,) else path for path in key_names(structure)]
        named = _without_wrappers(list(itertools.compress(paths, is_array)))
        others = tuple(None if a else leaf for leaf, a in zip(leaves, is_array, strict=True))
        params = nest_by_path(zip(named, itertools.compress(leaves, is_array), strict=True))
        return cls(params, tuple(named), others, is_array, structure)

    @classmethod
    def of_paths(cls, arrays: Sequence[tuple[Sequence[str], Any]]) -> PlainParameters:
        """Arrange a list of arrays, each with its path."""
        pairs = [(tuple(path), value) for path, value in arrays]
        tree = tree_util.tree_structure([0] * len(pairs))
        paths = tuple(path for path, _ in pairs)
        return cls(nest_by_path(pairs), paths, (None,) * len(pairs), (True,) * len(pairs), tree)

    def plain_results(self, results: Any, positions: UpdatePositions) -> Any:
        """Return what a function returns, with the new parameters in it as dicts of arrays."""
        if not positions:
            return results
        if is_bare(tree_util.tree_structure(results), self._all_paths, positions):
            return self._plain_part(results, next(iter(positions)))
        if not isinstance(results, (tuple, list)) or max(positions.values()) >= len(results):
            return results  # which is refused once the structure is known
        parts = list(results)
        for prefix, position in positions.items():
            parts[position] = self._plain_part(parts[position], prefix)
        return type(results)(*parts) if hasattr(results, "_fields") else type(results)(parts)

    @property
    def _all_paths(self) -> list[tuple[str, ...]]:
        return key_names(self.tree)

    def _plain_part(self, part: Any, prefix: tuple[str, ...]) -> Any:
        leaves, structure = tree_util.tree_flatten(part)
        before = dict(zip(self._all_paths, self.others, strict=True))
        arrays = []
        for path, leaf in zip(key_names(structure), leaves, strict=True):
            place = (*prefix, *path)
            if isinstance(leaf, (jax.Array, np.ndarray)):
                arrays.append((path, leaf))
            elif isinstance(leaf, _NUMBERS) and place in self.paths:
                arrays.append((path, jax.numpy.asarray(leaf)))
            elif isinstance(leaf, _NUMBERS) and before.get(place, leaf) != leaf:
                raise StructureError(
                    f"The function changes the number {before[place]} at {'/'.join(place)} of the "
                    f"parameters to {leaf}, and only arrays become variables. To do: make it an "
                    "array, as in jnp.asarray(0)."
                )
        return nest_by_path(arrays)

    def leaves(self, params: Any) -> list[Any]:
        """Return the arrays of such dicts in the order of the pytree."""
        return [functools.reduce(lambda part, key: part[key], path, params) for path in self.paths]

    def rebuild(self, params: Any) -> Any:
        """Return the pytree with the arrays of such dicts."""
        arrays = iter(self.leaves(params))
        pairs = zip(self.others, self.is_array, strict=True)
        return tree_util.tree_unflatten(self.tree, [next(arrays) if a else o for o, a in pairs])

    def select(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """Return the values of the pytree's leaves, for the leaves of the dicts."""
        by_path = dict(zip(self.paths, itertools.compress(flags, self.is_array), strict=True))
        order = key_names(tree_util.tree_structure(self.params))
        return tuple(by_path[path] for path in order)


def _without_wrappers(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the paths without a common private first part, as `equinox.filter_vmap` adds."""
    while paths and all(len(p) > 1 and p[0][:1] == "_" and p[0] == paths[0][0] for p in paths):
        paths = [path[1:] for path in paths]
    return list(paths)


def with_counters(params: Any) -> Any:
    """Return the parameters with arrays for numbers, which a step may count with.

    Numbers in modules of Equinox stay, which are parts of their structure.
    """
    equinox = sys.modules.get("equinox")

    def is_module(part: Any) -> bool:
        return equinox is not None and isinstance(part, equinox.Module)

    def to_array(leaf: Any) -> Any:
        return jax.numpy.asarray(leaf) if isinstance(leaf, _NUMBERS) else leaf

    return tree_util.tree_map(to_array, params, is_leaf=is_module)


def is_plain(params: Any) -> bool:
    """Return whether all leaves are arrays, and the classes of the pytree can be written down."""
    leaves, tree = tree_util.tree_flatten(params)
    if not all(map(_is_array, leaves)):
        return False
    try:
        describe_tree(tree, StaticData())
    except StructureError:  # static data that no file can hold
        return False
    return True


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic, StoredArray, *_NUMBERS))
