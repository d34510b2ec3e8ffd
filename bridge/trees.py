"""JAX pytrees -> the nested structures of a SavedModel, and names for their leaves."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from jax import tree_util

from savedmodel.structures import NONE, Branch, Leaf, Structure
from savedmodel.unique_names import UniqueNames
from xla_call_module.errors import StructureError

__all__ = [
    "check_flags",
    "check_prefix",
    "key_names",
    "to_identifier",
    "to_structure",
    "unique_names",
    "with_text_keys",
]


def to_structure(tree: tree_util.PyTreeDef) -> Structure:
    """The structure of a pytree; its leaves are numbered in JAX's order.

    TensorFlow knows dicts with string keys, lists, tuples, named tuples and None. Other mappings
    become dicts of their keys' text, and registered classes dicts of their fields' names.
    """
    return _convert(tree_util.tree_unflatten(tree, range(tree.num_leaves)))


def _convert(node: Any) -> Structure:
    """The structure of a pytree whose leaves are their own numbers."""
    if node is None:
        return NONE
    if isinstance(node, int):
        return Leaf(node)
    # One level: whatever is below is taken for a leaf, also what has none.
    below = tree_util.tree_leaves_with_path(node, is_leaf=lambda child: child is not node)
    names = unique_names(_key_name(path[0]) for path, _ in below)
    children = tuple(zip(names, (_convert(child) for _, child in below), strict=True))
    if type(node) in (list, tuple):
        return Branch("list" if type(node) is list else "tuple", children)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return Branch("namedtuple", children, type(node).__name__)
    return Branch("dict", children)


def with_text_keys(tree: tree_util.PyTreeDef) -> tree_util.PyTreeDef:
    """The pytree with the text of those keys that are no strings, its leaves in the same order.

    JAX serializes dicts with string keys only. Text sorts differently from numbers, so what was a
    dict becomes an OrderedDict.
    """

    def convert(node: Any) -> Any:
        if not _has_other_keys(node):
            return node
        names = unique_names(map(str, node))
        return OrderedDict(zip(names, map(convert_all, node.values()), strict=True))

    def convert_all(node: Any) -> Any:
        return tree_util.tree_map(convert, node, is_leaf=_has_other_keys)

    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return tree_util.tree_structure(convert_all(filled))


def _has_other_keys(node: Any) -> bool:
    return type(node) in (dict, OrderedDict) and not all(isinstance(key, str) for key in node)


def key_names(tree: tree_util.PyTreeDef) -> list[tuple[str, ...]]:
    """For each leaf the keys, indices and attributes that lead to it."""
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [tuple(map(_key_name, path)) for path, _ in tree_util.tree_leaves_with_path(filled)]


def unique_names(names: Iterable[str], *, ignore_case: bool = False) -> list[str]:
    """The names, with `_1`, `_2`, … after those that were there before."""
    unique = UniqueNames(ignore_case=ignore_case)
    return [unique.take(name) for name in names]


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


def check_flags(prefix: Any, tree: Any, *, what: str) -> list[bool]:
    """The bools of `prefix`, one for each leaf of `tree`.

    Raises:
        StructureError: it is no prefix, or has something else than bools.
    """
    flags = check_prefix(prefix, tree, what=what)
    if wrong := [flag for flag in flags if not isinstance(flag, bool)]:
        raise StructureError(f"{what} has a leaf {wrong[0]!r}; expected True or False.")
    return flags
