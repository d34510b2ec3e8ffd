"""JAX pytrees -> the nested structures of a SavedModel, and names for their leaves."""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax import tree_util

from savedmodel.protos.structures import NONE, Branch, Leaf, Structure
from xla_call_module.errors import StructureError, quote
from xla_call_module.pytrees.tree_description import outline
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.stablehlo.unique_names import UniqueNames


def to_structure(tree: tree_util.PyTreeDef, numbers: Iterable[int] | None = None) -> Structure:
    """Return the structure of a pytree; its leaves have numbers, by default those of JAX's order.

    TensorFlow knows dicts with string keys, lists, tuples, named tuples and None. Other mappings
    become dicts of their keys' text, and classes dicts of their fields' names.
    """
    return _convert(outline(tree), itertools.count() if numbers is None else iter(numbers))


def _convert(node: TreeNode, numbers: Iterator[int]) -> Structure:
    """Return the structure of a node, whose leaves take the next numbers."""
    if node.kind == "leaf":
        return Leaf(next(numbers))
    if node.kind == "none":
        return NONE
    texts = map(str, range(len(node.children))) if not node.names else map(_text, node.names)
    children = [_convert(child, numbers) for child in node.children]
    pairs = tuple(zip(unique_names(texts), children, strict=True))
    if node.kind in ("list", "tuple"):
        return Branch("list" if node.kind == "list" else "tuple", pairs)
    if node.kind == "namedtuple":
        return Branch("namedtuple", pairs, re.split(r"[:.]", node.path)[-1])
    return Branch("dict", pairs)


def _text(name: TreeNode) -> str:
    """Return the text of a key, as Python has it, which a file can hold."""
    text = str(_key(name))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StructureError(
            f"The key {text!r} of a pytree has half of a character (a surrogate), which UTF-8 "
            "cannot write. To do: take other letters."
        ) from error
    return text


def _key(name: TreeNode) -> Any:
    if name.kind == "tuple":
        return tuple(map(_key, name.children))
    return None if name.kind == "none" else name.value


def with_text_keys(tree: tree_util.PyTreeDef) -> tree_util.PyTreeDef:
    """Return the pytree with texts for keys that are no strings, its leaves in the same order.

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
    """Return for each leaf the keys, indices and attributes that lead to it."""
    return list(_paths(outline(tree), ()))


def _paths(node: TreeNode, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if node.kind == "leaf":
        yield path
    names = map(_text, node.names) if node.names else map(str, range(len(node.children)))
    for name, child in zip(names, node.children, strict=True):
        yield from _paths(child, (*path, name))


def nest_by_path(arrays: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Return dicts within dicts of arrays, each of which comes with its path."""
    nested: dict[str, Any] = {}
    for path, value in arrays:
        part: Any = nested
        for key in path[:-1]:
            part = part.setdefault(key, {}) if isinstance(part, dict) else None
        if not path or not isinstance(part, dict) or path[-1] in part:
            raise StructureError(
                f"The path {'/'.join(path)!r} of a parameter is, or goes through, that of another "
                "one. To do: give the parameters different names."
            )
        part[path[-1]] = value
    return nested


def unique_names(names: Iterable[str], *, ignore_case: bool = False) -> list[str]:
    """Return the names, with `_1`, `_2`, … after those that were there before."""
    unique = UniqueNames(ignore_case=ignore_case)
    return [unique.take(name) for name in names]


def to_identifier(text: str, *, fallback: str) -> str:
    """Return a valid name of an input or output: letters, digits, underscores, a letter first."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    if not name:
        return fallback
    return name if name[0].isalpha() else f"{fallback}_{name}"


def check_prefix(prefix: Any, tree: Any, *, what: str) -> list[Any]:
    """Return the leaves of `prefix`, one for each leaf of `tree`."""
    broadcast: list[Any] = []
    try:
        tree_util.tree_map(
            lambda value, part: broadcast.extend([value] * len(tree_util.tree_leaves(part))),
            prefix,
            tree,
        )
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"{what} is not a prefix of the parameters' pytree: {quote(error)}. To do: pass one "
            "bool for all, or one for each part, in containers of the same classes and keys."
        ) from error
    return broadcast


def check_flags(prefix: Any, tree: Any) -> list[bool]:
    """Return the bools of `trainable`, one for each leaf of `tree`."""
    flags = check_prefix(prefix, tree, what="trainable")
    if wrong := [flag for flag in flags if not isinstance(flag, bool)]:
        raise StructureError(f"trainable has a leaf {wrong[0]!r}; expected True or False.")
    return flags
