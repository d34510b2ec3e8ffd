"""JAX pytrees -> the nested structures of a SavedModel, and names for their leaves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from jax import tree_util

from savedmodel.structures import NONE, Branch, Leaf, Structure
from xla_call_module.errors import StructureError

__all__ = ["key_names", "to_structure", "unique_names"]


def to_structure(tree: tree_util.PyTreeDef) -> Structure:
    """The structure of a pytree; its leaves are numbered in JAX's order.

    TensorFlow knows dicts with string keys, lists, tuples, named tuples and None. Other mappings
    become dicts of their keys' text, and registered classes dicts of their fields' names.
    """
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in tree_util.tree_leaves_with_path(filled)]
    return _convert(tree, paths, 0, 0)


def _convert(
    tree: tree_util.PyTreeDef, paths: Sequence[tuple[Any, ...]], first: int, depth: int
) -> Structure:
    """The structure of a subtree.

    Args:
        tree: the subtree.
        paths: of all leaves of the whole.
        first: the number of the subtree's first leaf.
        depth: of the subtree.
    """
    node = tree.node_data()
    if node is None:
        return NONE if tree.num_leaves == 0 else Leaf(first)
    children = []
    for position, child in enumerate(tree.children()):
        # A child without leaves is on no path, so it is named by its position.
        name = _key_name(paths[first][depth]) if child.num_leaves else str(position)
        children.append((name, _convert(child, paths, first, depth + 1)))
        first += child.num_leaves
    kind = node[0]
    if kind in (list, tuple):
        return Branch("list" if kind is list else "tuple", tuple(children))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        named = zip(kind._fields, (child for _, child in children), strict=True)
        return Branch("namedtuple", tuple(named), kind.__name__)
    if kind is type(None):
        return NONE
    return Branch(
        "dict",
        tuple(zip(unique_names(n for n, _ in children), (c for _, c in children), strict=True)),
    )


def key_names(tree: tree_util.PyTreeDef) -> list[tuple[str, ...]]:
    """For each leaf the keys, indices and attributes that lead to it."""
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(_key_name, path)) for path, _ in tree_util.tree_leaves_with_path(filled)]


def unique_names(names: Iterable[str]) -> list[str]:
    """The names, with `_1`, `_2`, … after those that were there before."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, count = name, 0
        while candidate in taken:
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def _key_name(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return re.sub(r"\W", "", str(entry))


def to_identifier(text: str, *, fallback: str) -> str:
    """A valid name for an input or output: letters, digits and underscores, a letter first."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    if not name:
        return fallback
    return name if name[0].isalpha() else f"{fallback}_{name}"


def check_prefix(prefix: Any, tree: Any, *, what: str) -> list[Any]:
    """The leaves of `prefix`, one for each leaf of `tree`.

    Raises:
        StructureError: it is no prefix.
    """
    broadcast: list[Any] = []
    try:
        tree_util.tree_map(
            lambda value, part: broadcast.extend([value] * len(tree_util.tree_leaves(part))),
            prefix,
            tree,
        )
    except (ValueError, TypeError) as error:
        raise StructureError(f"{what} is no prefix of the parameters' pytree: {error}") from error
    return broadcast
