"""The comparison of a pytree with the one that a function of a file takes.

No file holds functions, nor classes that a process has not imported. What JAX says of two treedefs
is therefore too little: a state with `apply_fn=model.apply` is what was exported, if all else is.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import tree_util

from bridge.core.trees import with_text_keys
from xla_call_module.errors import StructureError
from xla_call_module.pytrees.node_classes import MissingFunction, find_class, path_of
from xla_call_module.pytrees.tree_description import StaticData, describe_tree
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.pytrees.tree_restoring import restore_tree


@dataclass(frozen=True, slots=True)
class Match:
    """The way in which a pytree matches another structure.

    Attributes:
        order: for each leaf of the other structure its index here; None where that is the same.
        functions: the functions that were passed where a file has none, by their numbers there.
    """

    order: tuple[int, ...] | None = None
    functions: Mapping[int, Any] = field(default_factory=dict)

    def leaves(self, given: Sequence[Any]) -> list[Any]:
        """Return the leaves in the other's order."""
        return list(given) if self.order is None else [given[index] for index in self.order]

    def results(self, tree: tree_util.PyTreeDef) -> tree_util.PyTreeDef:
        """Return the structure of results, with the functions that were passed."""
        if not self.functions:
            return tree
        data = StaticData()
        node = describe_tree(tree, data)
        known = {
            number: self.functions[function.number]
            for number, function in enumerate(data.functions)
            if isinstance(function, MissingFunction) and function.number in self.functions
        }
        return restore_tree(node, known) if known else tree


_SAME = Match()
_CLASS = operator.attrgetter("kind", "path", "names")


def match_trees(given: Any, expected: Any) -> Match | None:
    """Return how a pytree that was passed matches the expected one; None where it does not."""
    # In older files the keys of dicts are text, in the order that they had.
    if given == expected or with_text_keys(given) == expected:
        return _SAME
    passed, known = StaticData(), StaticData()
    try:
        matcher = _Matcher(passed, known, {})
        nodes = describe_tree(given, passed), describe_tree(expected, known)
    except StructureError:  # static data that is no JSON, and not the same
        return None
    order = matcher.leaves(*nodes, 0)
    if order is None:
        return None
    is_same = order == list(range(len(order)))
    return Match(None if is_same else tuple(order), matcher.functions)


@dataclass(frozen=True, slots=True)
class _Matcher:
    """The comparison of two structures.

    Attributes:
        passed: the static data of the structure that was passed.
        known: the static data of the expected one.
        functions: the functions that were passed where a file has none, as far as they are known.
    """

    passed: StaticData
    known: StaticData
    functions: dict[int, Any]

    def leaves(self, given: TreeNode, expected: TreeNode, first: int) -> list[int] | None:
        """Return the indices of the leaves of what was passed; None where it does not match."""
        if expected.kind == "leaf":
            return [first] if given.kind == "leaf" else None
        positions = self._positions(given, expected)
        if positions is None:
            return None
        starts = [first]
        for child in given.children:
            starts.append(starts[-1] + child.num_leaves)
        order: list[int] = []
        for position, wanted in zip(positions, expected.children, strict=True):
            leaves = self.leaves(given.children[position], wanted, starts[position])
            if leaves is None:
                return None
            order += leaves
        return order

    def _positions(self, given: TreeNode, expected: TreeNode) -> Sequence[int] | None:
        """Return the index of each child in what was passed; None where it does not match."""
        if len(given.children) != len(expected.children):
            return None
        if given.kind == "dict" and expected.kind in ("class", "namedtuple"):
            fields = [str(name.value) for name in expected.names]
            names = [str(name.value) for name in given.names]
            if set(names) != set(fields) or find_class(expected.path) is not None:
                return None
            return [names.index(name) for name in fields]
        alike = _CLASS(given) == _CLASS(expected) and self._is_static(given, expected)
        return range(len(given.children)) if alike else None

    def _is_static(self, given: TreeNode, expected: TreeNode) -> bool:
        if given.static is None or expected.static is None:
            return given.static is expected.static
        return self._is_data(given.static, expected.static)

    def _is_data(self, given: TreeNode, expected: TreeNode) -> bool:
        """Return whether static data is the same, but for functions that a file lacks."""
        if expected.kind == "function":
            return self._is_function(given, self.known.functions[int(expected.value)])
        return (
            _CLASS(given) == _CLASS(expected)
            and given.value == expected.value
            and self._is_static(given, expected)
            and len(given.children) == len(expected.children)
            and all(map(self._is_data, given.children, expected.children))
        )

    def _is_function(self, given: TreeNode, expected: Any) -> bool:
        if given.kind != "function":
            return given.kind == "none" and isinstance(expected, MissingFunction)
        function = self.passed.functions[int(given.value)]
        if not isinstance(expected, MissingFunction):
            return bool(function == expected)
        if _name(function) and _name(expected) and _name(function) != _name(expected):
            return False
        self.functions[expected.number] = function
        return True


def _name(function: Any) -> str:
    """Return the qualified name of a function; empty where it has none."""
    name = path_of(function).partition(":")[2]
    return "" if "<" in name or name.endswith("()") else name
