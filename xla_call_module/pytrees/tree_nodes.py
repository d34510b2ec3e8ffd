"""`TreeNode`: the structure of a pytree as a value and as JSON, with its classes by their names.

It is a part of the description that a node carries of its `Exported`, and can be read without JAX
and without the classes:

- `"*"` is an array, `null` is None, `[…]` a list, `{"tuple": […]}` a tuple;
- `{"dict": [[key, child], …]}` is a dict in JAX's order of the keys;
- `{"class": "module:name", "fields": [[name, child], …], "static": data}` is a node of a class, and
  `{"namedtuple": "module:name", "fields": …}` one of a named tuple;
- `{"registered": "name", "data": "base64", "children": […]}` is a node of a class that has a name
  for serialization (`jax.export.register_pytree_node_serialization`), with what its own function
  made of its static data.

Static data has the same forms. Where a tree has arrays it has values: numbers, texts and bools as
they are in JSON, `{"float": "nan"}`, `{"type": "jax.numpy.float32"}` for the types that are known,
`{"object": "module:name", "fields": …}` for an instance of a class that is a static node, and
`{"function": "module:name", "number": 0}` for one that cannot be in a file; equal ones have the
same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from xla_call_module.errors import FormatError

Kind = Literal[
    "class", "dict", "function", "leaf", "list", "namedtuple", "none", "object", "registered",
    "tuple", "type", "value",
]  # fmt: skip
Scalar = bool | int | float | str

# How deep a structure of a file may be; Python's own recursion ends at five times as much.
MAX_TREE_DEPTH = 200
# How deep one is written, so that a reader far up in the stack of its callers can read it, too.
MAX_WRITTEN_DEPTH = 100


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node of a pytree's structure, or of the static data in it.

    Attributes:
        kind: the container; `leaf` for an array, and `value`, `type`, `function` and `object` for
            what is in static data only.
        path: the class, function or type as `module:name`; of a `registered` node the name that
            its class was registered by.
        names: for each child the key of the dict or the name of the field; not for lists and
            tuples. A key is a `value`, or a tuple of keys.
        children: the children in JAX's order.
        static: the static data of a class.
        value: the value of a `value`, the number of a `function`, and the base64 text of the
            serialized static data of a `registered` node.
    """

    kind: Kind
    path: str = ""
    names: tuple[TreeNode, ...] = ()
    children: tuple[TreeNode, ...] = ()
    static: TreeNode | None = None
    value: Scalar = 0

    @property
    def num_leaves(self) -> int:
        """The number of arrays in it."""
        return int(self.kind == "leaf") + sum(child.num_leaves for child in self.children)

    @property
    def is_plain(self) -> bool:
        """Return whether JAX can write it down: containers of Python, with keys that are text."""
        if self.kind == "dict":
            plain = all(isinstance(name.value, str) and name.kind == "value" for name in self.names)
            return plain and all(child.is_plain for child in self.children)
        own = self.kind in ("leaf", "list", "none", "tuple")
        return own and all(child.is_plain for child in self.children)

    def to_json(self) -> Any:
        """Return a JSON value that `from_json` reads."""
        match self.kind:
            case "leaf":
                return "*"
            case "none":
                return None
            case "value":
                return _number_to_json(self.value)
            case "type":
                return {"type": self.path}
            case "function":
                return {"function": self.path, "number": self.value}
            case "list":
                return [child.to_json() for child in self.children]
            case "tuple":
                return {"tuple": [child.to_json() for child in self.children]}
            case "registered":
                children = [child.to_json() for child in self.children]
                return {"registered": self.path, "data": self.value, "children": children}
        pairs = [
            [name.to_json(), child.to_json()]
            for name, child in zip(self.names, self.children, strict=True)
        ]
        if self.kind == "dict":
            return {"dict": pairs}
        fields: dict[str, Any] = {self.kind: self.path, "fields": pairs}
        return fields if self.static is None else fields | {"static": self.static.to_json()}

    @classmethod
    def from_json(cls, parsed: Any, *, where: str) -> TreeNode:
        """Return the structure that `to_json` wrote."""
        return _TreeReader(where).read(parsed, depth=0, is_static=False)


LEAF = TreeNode("leaf")


@dataclass(frozen=True, slots=True)
class Trees:
    """The structures of the arguments, as `(args, kwargs)`, and of the results of a function."""

    arguments: TreeNode
    results: TreeNode

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads."""
        return {"args": self.arguments.to_json(), "results": self.results.to_json()}

    @classmethod
    def from_json(cls, parsed: Any, *, where: str) -> Trees:
        """Return the structures that `to_json` wrote."""
        if not isinstance(parsed, Mapping) or parsed.keys() != {"args", "results"}:
            raise FormatError(f"{where}: {str(parsed)[:80]} does not describe two pytrees.")
        return cls(*(TreeNode.from_json(parsed[key], where=where) for key in ("args", "results")))


def _number_to_json(value: Scalar) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


@dataclass(frozen=True, slots=True)
class _TreeReader:
    where: str

    def read(self, parsed: Any, *, depth: int, is_static: bool) -> TreeNode:
        """Return a node with all that is below."""
        if depth > MAX_TREE_DEPTH:
            raise FormatError(f"{self.where}: a pytree is more than {MAX_TREE_DEPTH} levels deep.")
        if parsed is None:
            return TreeNode("none")
        if isinstance(parsed, list):
            return TreeNode("list", children=self._all(parsed, depth, is_static))
        if not isinstance(parsed, dict):
            if is_static and isinstance(parsed, Scalar):
                return TreeNode("value", value=parsed)
            if parsed == "*" and not is_static:
                return LEAF
            raise self._damaged(parsed)
        if is_static and (value := self._read_value(parsed)) is not None:
            return value
        return self._read_container(parsed, depth, is_static=is_static)

    def _read_value(self, parsed: dict[str, Any]) -> TreeNode | None:
        match parsed:
            case {"float": ("nan" | "inf" | "-inf") as text, **rest} if not rest:
                return TreeNode("value", value=float(text))
            case {"type": str(path), **rest} if not rest:
                return TreeNode("type", path)
            case {"function": str(path), "number": int(number), **rest} if not rest:
                return TreeNode("function", path, value=number)
        return None

    def _read_container(self, parsed: dict[str, Any], depth: int, *, is_static: bool) -> TreeNode:
        match parsed:
            case {"tuple": list(items), **rest} if not rest:
                return TreeNode("tuple", children=self._all(items, depth, is_static))
            case {
                "registered": str(path), "data": str(data), "children": list(items), **rest
            } if not is_static and not rest:  # fmt: skip
                return TreeNode("registered", path, (), self._all(items, depth, False), value=data)
            case {"dict": list(items), **rest} if not rest:
                return TreeNode("dict", "", *self._pairs(items, depth, is_static))
            case {"namedtuple": str(path), "fields": list(items), **rest} if not rest:
                return TreeNode("namedtuple", path, *self._pairs(items, depth, is_static))
            case {"object": str(path), "fields": list(items), **rest} if is_static and not rest:
                return TreeNode("object", path, *self._pairs(items, depth, is_static))
            case {"class": str(path), "fields": list(items), **rest} if rest.keys() <= {"static"}:
                static = None
                if rest:
                    static = self.read(rest["static"], depth=depth + 1, is_static=True)
                return TreeNode("class", path, *self._pairs(items, depth, is_static), static)
        raise self._damaged(parsed)

    def _all(self, items: list[Any], depth: int, is_static: bool) -> tuple[TreeNode, ...]:  # noqa: FBT001
        return tuple(self.read(item, depth=depth + 1, is_static=is_static) for item in items)

    def _pairs(
        self,
        items: list[Any],
        depth: int,
        is_static: bool,  # noqa: FBT001
    ) -> tuple[tuple[TreeNode, ...], tuple[TreeNode, ...]]:
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            raise self._damaged(items)
        names = tuple(self.read(name, depth=depth + 1, is_static=True) for name, _ in items)
        return names, self._all([child for _, child in items], depth, is_static)

    def _damaged(self, parsed: Any) -> FormatError:
        return FormatError(f"{self.where}: {str(parsed)[:80]} does not describe a pytree.")
