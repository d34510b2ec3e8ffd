"""JAX's treedefs -> `TreeNode`s."""

from __future__ import annotations

import base64
import builtins
import dataclasses
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from xla_call_module._jax import pytree_classes, registered_by_class
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import StructureError, UnsupportedError
from xla_call_module.pytrees.node_classes import (
    MissingFunction,
    UnknownNode,
    is_named_tuple,
    path_of,
    public_path,
)
from xla_call_module.pytrees.tree_nodes import (
    LEAF,
    MAX_TREE_DEPTH,
    MAX_WRITTEN_DEPTH,
    TreeNode,
    Trees,
)

_NONE = TreeNode("none")
_CONTAINERS: Mapping[type, Literal["list", "tuple"]] = {list: "list", tuple: "tuple"}
_BUILTIN = (list, tuple, dict)
# What stands for an array where a structure is looked at.
LEAF_MAKERS: tuple[Callable[[], Any], ...] = (object, int, lambda: np.zeros(()))


def describe_trees(exported: export.Exported) -> Trees:
    """Return the structures of arguments and results, with the classes by their names."""
    data = StaticData()
    in_tree, out_tree = exported.in_tree, exported.out_tree
    args, kwargs = _children(in_tree)
    name = exported.fun_name
    parts = [
        _Describer(data, f"{name}: {side}").root(tree, root)
        for side, root, tree in (
            ("the argument ", "args", args),
            ("the argument ", "kwargs", kwargs),
            ("the ", "result", out_tree),
        )
    ]
    return Trees(TreeNode("tuple", children=tuple(parts[:2])), parts[2])


def describe_registered(tree: Any, depth: int = 0) -> TreeNode:
    """Return the structure of a pytree as `jax.export` serializes it: by registered names."""
    if depth > MAX_TREE_DEPTH:
        raise UnsupportedError(
            f"A pytree is more than {MAX_TREE_DEPTH} levels deep. To do: nest it less deep."
        )
    if (data := tree.node_data()) is None:
        return LEAF
    kind, static = data
    children = tuple(describe_registered(child, depth + 1) for child in tree.children())
    if kind is type(None):
        return _NONE
    if kind in _CONTAINERS:
        return TreeNode(_CONTAINERS[kind], children=children)
    if kind is dict and all(type(key) is str for key in static):
        return TreeNode("dict", "", tuple(TreeNode("value", value=k) for k in static), children)
    if kind is dict or kind not in (known := registered_by_class()):
        raise UnsupportedError(
            f"A pytree node of {path_of(kind)} is not registered for serialization. To do: call "
            "jax.export.register_pytree_node_serialization or register_namedtuple_serialization."
        )
    name, serialize_static = known[kind]
    try:
        text = base64.b64encode(serialize_static(static)).decode()
    except Exception as error:
        raise UnsupportedError(
            f"The function that {path_of(kind)} is registered for serialization with fails: "
            f"{type(error).__name__}: {error!s:.200}. To do: register one that takes its static "
            "data."
        ) from error
    return TreeNode("registered", name, children=children, value=text)


def outline(tree: tree_util.PyTreeDef) -> TreeNode:
    """Return the structure of any pytree, without its static data."""
    return _Describer(None).root(tree)


def describe_tree(tree: tree_util.PyTreeDef, data: StaticData) -> TreeNode:
    """Return the structure of any pytree."""
    return _Describer(data).root(tree)


def is_plain_tree(*trees: tree_util.PyTreeDef) -> bool:
    """Return whether JAX writes trees down by itself: containers of Python, with texts for keys."""
    return all(map(_is_plain, trees))


def _is_plain(tree: tree_util.PyTreeDef) -> bool:
    data = tree.node_data()
    if data is None:
        return True
    kind, keys = data
    if kind in (dict, OrderedDict) and not all(type(key) is str for key in keys):
        return False
    known = (list, tuple, dict, OrderedDict, type(None))
    return kind in known and all(map(_is_plain, _children(tree)))


def _children(tree: Any) -> list[Any]:
    return list(tree.children())


def filled(tree: Any) -> Any:
    """Return a pytree with something for leaves; None where a class does not take that.

    https://docs.jax.dev/en/latest/custom_pytrees.html asks classes to take any object; some take
    numbers or arrays only.
    """
    for make in LEAF_MAKERS:
        try:
            value = tree_util.tree_unflatten(tree, [make() for _ in range(tree.num_leaves)])
            if len(tree_util.tree_leaves(value)) == tree.num_leaves:
                return value
        except Exception:  # noqa: BLE001 - whatever a class raises, there is another way
            continue
    return None


def leaf_paths(tree: tree_util.PyTreeDef) -> list[str]:
    """Return for each leaf its path as `jax.tree_util.keystr` writes it."""
    value = filled(tree)
    if value is not None:
        return [tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(value)]
    return list(_paths_in(tree))


def _paths_in(tree: Any) -> Iterator[str]:
    """Return the same of what nobody can make: the children of such a class have numbers."""
    data = tree.node_data()
    if data is None:
        yield ""
    below = _children(tree)
    for index, child in enumerate(below):
        kind, keys = data
        entry = f"[{keys[index]!r}]" if kind is dict else f"[{index}]"
        for path in leaf_paths(child):
            yield f"{entry}{path}"


def one_level(value: Any) -> tuple[tuple[Any, ...], list[Any], Any]:
    """Return the names of the children of a registered class, these, and its static data.

    Where it was registered without names they are those of the attributes that hold the children,
    or else numbers.
    """
    flat, static = tree_util.default_registry.flatten_one_level_with_keys(value)
    pairs = list(flat)
    children = [child for _, child in pairs]
    if all(isinstance(key, tree_util.FlattenedIndexKey) for key, _ in pairs):
        own = getattr(value, "__dict__", {})
        attributes = {id(child): name for name, child in own.items()}
        names = [attributes.get(id(child)) for child in children]
        if None not in names and len(set(names)) == len(names):
            return tuple(names), children, static
    return tuple(key_name(key) for key, _ in pairs), children, static


def key_name(entry: Any) -> Any:
    """Return the key, index or attribute that an entry of JAX's key paths is."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return re.sub(r"\W", "", str(entry))


@dataclasses.dataclass(frozen=True, slots=True)
class _Describer:
    """The description of one treedef in the making.

    Attributes:
        data: the static data of its classes; None to leave that out.
        where: the words for its place in messages.
    """

    data: StaticData | None
    where: str = ""

    def root(self, tree: Any, path: str = "") -> TreeNode:
        """Return the node of the whole."""
        return self.node(tree, filled(tree), path, 0)

    def node(self, tree: Any, value: Any, path: str, depth: int) -> TreeNode:
        """Return the node of a part, of which `value` is an instance, or None."""
        if depth > MAX_WRITTEN_DEPTH:
            raise StructureError(
                f"{self.where}{path:.80} is more than {MAX_WRITTEN_DEPTH} levels deep. To do: "
                "stack arrays that are alike into one."
            )
        data, below = tree.node_data(), _children(tree)
        if data is None:
            return LEAF
        kind, static = data
        if kind is type(None):
            return _NONE
        if value is None and kind not in _BUILTIN:
            value = filled(tree)
        children = [None] * len(below)
        names: Sequence[Any] = range(len(below))
        if kind is dict:
            names, children = static, [None if value is None else value[key] for key in static]
        elif kind in _CONTAINERS or is_named_tuple(kind):
            names = names if kind in _CONTAINERS else kind._fields
            # A named tuple may have methods of its own for what it looks like.
            iterate = list.__iter__ if kind is list else tuple.__iter__
            children = children if value is None else list(iterate(value))
        elif value is not None:
            names, children, _ = one_level(value)
        if len(names) != len(below):  # what its children are depends on their values
            names, children = range(len(below)), [None] * len(below)
        entries = [
            self.node(child, part, f"{path}{_entry(kind, name)}", depth + 1)
            for child, part, name in zip(below, children, names, strict=True)
        ]
        if kind in _CONTAINERS:
            return TreeNode(_CONTAINERS[kind], children=tuple(entries))
        return self._named(kind, names, tuple(entries), static, path)

    def _named(
        self,
        kind: Any,
        names: Sequence[Any],
        children: tuple[TreeNode, ...],
        static: Any,
        path: str,
    ) -> TreeNode:
        """Return the node of what has names for its children."""
        known = [_key(name) for name in names]
        texts = (TreeNode("value", value=str(name)) for name in names)
        keys = tuple(key or text for key, text in zip(known, texts, strict=True))
        if kind is dict and None not in known:
            return TreeNode("dict", "", keys, children)
        if kind is dict:  # with keys that only this process has: text has another order
            static = TreeNode("tuple", children=keys)
            return TreeNode("class", "collections:OrderedDict", keys, children, static)
        if kind is UnknownNode:
            path, _, rest = static
            if rest is not None and self.data is not None:
                rest = self.data.renumbered(rest)
            return TreeNode("class", path, keys, children, rest)
        cls = path_of(kind) if self.data is None else public_path(kind)
        if is_named_tuple(kind):
            return TreeNode("namedtuple", cls, keys, children)
        if self.data is None:
            return TreeNode("class", cls, keys, children)
        where = f"{self.where}{path} (static data of {kind.__name__})"
        whole = type(static) is kind
        rest = self.data.instance(static, where) if whole else self.data.node(static, where)
        return TreeNode("class", cls, keys, children, rest)


def _key(name: Any) -> TreeNode | None:
    """Return a key of a dict; None for one that is not of a class that every process has."""
    if name is None:
        return _NONE
    if type(name) is tuple:
        parts = [_key(part) for part in name]
        if None in parts:
            return None
        return TreeNode("tuple", children=tuple(part for part in parts if part is not None))
    return _scalar(name) if not isinstance(name, (type, np.dtype)) else None


def _entry(kind: type, name: Any) -> str:
    """Return a step of a path as messages write it."""
    is_name = isinstance(name, str) and name.isidentifier() and kind is not dict
    return f".{name}" if is_name else f"[{name!r}]"


class StaticData:
    """The static data of pytrees as nodes; functions are numbered, equal ones alike.

    Attributes:
        functions: the functions that were met, by their numbers.
    """

    functions: list[Any]

    def __init__(self) -> None:
        """Begin with none."""
        self.functions = []

    def node(self, value: Any, where: str, depth: int = 0) -> TreeNode:
        """Return the node of what a class keeps besides its children, or of a key."""
        if depth > MAX_WRITTEN_DEPTH:
            raise UnsupportedError(
                f"{where} is more than {MAX_WRITTEN_DEPTH} levels deep. To do: nest it less deep."
            )
        if value is None:
            return _NONE
        if (scalar := _scalar(value)) is not None:
            return scalar
        if type(value) in _CONTAINERS:
            children = tuple(self.node(child, where, depth + 1) for child in value)
            return TreeNode("list" if type(value) is list else "tuple", children=children)
        if type(value) is dict:
            names = tuple(self.node(key, where, depth + 1) for key in value)
            return TreeNode("dict", "", names, self._all(value.values(), where, depth))
        if is_named_tuple(type(value)):
            names = tuple(TreeNode("value", value=name) for name in type(value)._fields)
            path = public_path(type(value))
            return TreeNode(
                "namedtuple", path, names, self._all([*tuple.__iter__(value)], where, depth)
            )
        if type(value) in pytree_classes():
            return self._class(value, where, depth)
        if callable(value):
            return TreeNode("function", path_of(value), value=self._number(value))
        raise UnsupportedError(
            f"{where} is {value!r:.80} ({path_of(type(value))}), which is neither an array nor "
            "JSON, so a file cannot hold it. To do: make it an array, a number or a text, or bind "
            "it to the function (functools.partial) and pass the arrays alone."
        )

    def _all(self, values: Any, where: str, depth: int) -> tuple[TreeNode, ...]:
        return tuple(self.node(value, where, depth + 1) for value in values)

    def _class(self, value: Any, where: str, depth: int) -> TreeNode:
        """Return the node of an instance of a class that is a pytree node itself."""
        names, children, static = one_level(value)
        if type(static) is type(value):  # jax.tree_util.register_static
            return self.instance(value, where, depth)
        return TreeNode(
            "class",
            public_path(type(value)),
            tuple(self.node(name, where, depth + 1) for name in names),
            self._all(children, where, depth),
            self.node(static, where, depth + 1),
        )

    def instance(self, value: Any, where: str, depth: int = 0) -> TreeNode:
        """Return the node of an instance of a class whose instances are static as a whole."""
        fields = fields_of(value)
        if fields is None:
            raise UnsupportedError(
                f"{where} is {value!r:.80} ({path_of(type(value))}), static data that JSON cannot "
                "write. To do: make its class a dataclass, or bind it to the function "
                "(functools.partial)."
            )
        names = tuple(TreeNode("value", value=name) for name in fields)
        children = self._all(fields.values(), where, depth)
        return TreeNode("object", public_path(type(value)), names, children)

    def renumbered(self, node: TreeNode) -> TreeNode:
        """Return static data of a file with the numbers that its functions have here."""
        if node.kind == "function":
            number = self._number(MissingFunction(node.path, int(node.value)))
            return dataclasses.replace(node, value=number)
        children = tuple(map(self.renumbered, node.children))
        static = None if node.static is None else self.renumbered(node.static)
        return dataclasses.replace(node, children=children, static=static)

    def _number(self, function: Any) -> int:
        for number, known in enumerate(self.functions):
            if _is_same(known, function):
                return number
        self.functions.append(function)
        return len(self.functions) - 1


def _is_same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - that of any class
        return False


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an instance of a static class; under an empty name what it extends."""
    for scalar in (str, bool, int, float):
        if isinstance(value, scalar):
            return {"": scalar(value)}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def _scalar(value: Any) -> TreeNode | None:
    """Return the node of a number, a text, a dtype or a type with a known name; else None."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return TreeNode("value", value=value.item())
    for scalar in (bool, int, float, str):
        if isinstance(value, scalar) and type(value) not in pytree_classes():
            return TreeNode("value", value=scalar(value))
    is_dtype = isinstance(value, np.dtype)
    if is_dtype or isinstance(value, (type, type(jnp.float32))):
        for name, known in named_types().items():
            if known is value or (is_dtype and isinstance(known, np.dtype) and known == value):
                return TreeNode("type", name)
    return None


def named_types() -> dict[str, Any]:
    """Return types that static data often has, by their names; calling one does nothing."""
    types = ("bool", "dict", "float", "int", "list", "set", "str", "tuple")
    named = {f"builtins:{name}": getattr(builtins, name) for name in types}
    for dtype in DTYPES:
        named[f"dtype:{dtype.name}"] = dtype.numpy
        named[f"numpy:{dtype.name}"] = dtype.numpy.type
        if hasattr(jnp, dtype.name):
            named[f"jax.numpy:{dtype.name}"] = getattr(jnp, dtype.name)
    return named
