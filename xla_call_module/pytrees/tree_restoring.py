"""`TreeNode`s -> JAX's treedefs, with the classes that this process has imported."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax import tree_util

from xla_call_module._jax import pytree_classes, registered_by_name
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.pytrees.node_classes import (
    MissingFunction,
    UnknownNode,
    find_class,
    is_named_tuple,
    is_stand_in,
    named_tuple_class,
    path_of,
)
from xla_call_module.pytrees.tree_description import LEAF_MAKERS, fields_of, named_types, one_level
from xla_call_module.pytrees.tree_nodes import TreeNode

# Of each one all modules of its package are looked through.
MAX_CLASSES = 1000


def restore_tree(
    node: TreeNode, functions: Mapping[int, Any] | None = None, *, stand_ins: bool = False
) -> tree_util.PyTreeDef:
    """Return the treedef of a structure, with stand-ins for missing or changed classes."""
    if len(classes := set(_paths(node))) > MAX_CLASSES:
        raise FormatError(
            f"A pytree of the file has {len(classes)} classes; expected at most {MAX_CLASSES}."
        )
    try:
        for make in LEAF_MAKERS:
            instance = _Restorer(functions or {}, make, stand_ins).instance(node)
            tree: Any = tree_util.tree_structure(instance)
            if tree.num_leaves == node.num_leaves and not [*missing_classes(tree)]:
                return tree
    except _UnregisteredError as error:
        raise StructureError(str(error)) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"A pytree of the file is damaged: {error!s:.200}") from error
    if tree.num_leaves != node.num_leaves:
        raise FormatError(
            f"A pytree of the file has {node.num_leaves} leaves, and {tree.num_leaves} as JAX "
            "makes it. To do: write the file again."
        )
    return tree


class _UnregisteredError(Exception):
    """The class of a node has no serialization in this process."""


def _paths(node: TreeNode) -> Iterator[str]:
    if node.path:
        yield node.path
    for part in (*node.children, *((node.static,) if node.static is not None else ())):
        yield from _paths(part)


def missing_classes(tree: Any) -> Iterator[str]:
    """Return the paths of the classes that have stand-ins in a treedef."""
    data = tree.node_data()
    if data is not None and is_stand_in(data[0]):
        yield data[1][0] if data[0] is UnknownNode else path_of(data[0])
    for child in tree.children():
        yield from missing_classes(child)


@dataclasses.dataclass(frozen=True, slots=True)
class _Restorer:
    """The maker of pytrees from nodes, with any objects for leaves."""

    functions: Mapping[int, Any]
    make_leaf: Callable[[], Any]
    stand_ins: bool

    def instance(self, node: TreeNode) -> Any:
        """Return a pytree, or a value of static data."""
        if node.kind in ("leaf", "none", "value", "type", "function"):
            return self._single(node)
        children = [self.instance(child) for child in node.children]
        if node.kind == "registered":
            if self.stand_ins and node.path not in registered_by_name():
                return UnknownNode(node.path, range(len(children)), children, None)
            return _registered(node, children)
        if node.kind in ("list", "tuple"):
            return children if node.kind == "list" else tuple(children)
        names = [self.instance(name) for name in node.names]
        match node.kind:
            case "dict":
                return dict(zip(names, children, strict=True))
            case "namedtuple":
                return _named_tuple(node.path, names, children)
            case "object":
                return self._object(node, names, children)
        return self._of_class(node, names, children)

    def _single(self, node: TreeNode) -> Any:
        match node.kind:
            case "leaf":
                return self.make_leaf()
            case "value":
                return node.value
            case "type":
                return _type_of(node)
            case "function":
                number = int(node.value)
                return self.functions.get(number, MissingFunction(node.path, number))
        return None

    def _object(self, node: TreeNode, names: Sequence[Any], children: Sequence[Any]) -> Any:
        """Return an instance of a class whose instances are static as a whole, without its code."""
        cls = find_class(node.path)
        if cls is not None and cls in pytree_classes():
            fields = dict(zip(names, children, strict=True))
            try:
                made = _made_of(cls, fields)
                if fields_of(made) == fields:
                    return made
            except (TypeError, AttributeError, ValueError):
                pass  # the class is another one than it was
        return UnknownNode(node.path, names, children, None)

    def _of_class(self, node: TreeNode, names: Sequence[Any], children: Sequence[Any]) -> Any:
        cls = find_class(node.path)
        if cls is not None and cls in pytree_classes() and cls is not UnknownNode:
            static = None if node.static is None else self.instance(node.static)
            try:
                made = pytree_classes()[cls].from_iter(static, tuple(children))
                own_names, below, kept = one_level(made)
                same = list(own_names) == list(names) and len(below) == len(children)
                if same and kept == static:
                    return made
            except Exception:  # noqa: BLE001 - the class is another one than it was
                pass
        return UnknownNode(node.path, names, children, node.static)


def _registered(node: TreeNode, children: Sequence[Any]) -> Any:
    """Return a node of a class that is registered for serialization, by its own functions."""
    known = registered_by_name().get(node.path)
    if known is None:
        raise _UnregisteredError(
            "The file has a pytree type that was registered for serialization as "
            f"{node.path!r:.80}, and this process has none of that name. To do: import the module "
            "that registers it, or call jax.export.register_pytree_node_serialization or "
            "register_namedtuple_serialization as when the file was written."
        )
    _, deserialize_static, from_children = known
    data = base64.b64decode(str(node.value), validate=True)
    try:
        return from_children(deserialize_static(data), tuple(children))
    except Exception as error:
        raise ValueError(f"{node.path}: {type(error).__name__}: {error!s:.120}") from error


def _made_of(cls: Any, fields: Mapping[str, Any]) -> Any:
    if fields.keys() == {""}:  # it extends a scalar
        scalar = next(base for base in (str, bool, int, float) if issubclass(cls, base))
        return scalar.__new__(cls, fields[""])
    made = object.__new__(cls)
    for name, value in fields.items():
        if name.startswith("__"):
            raise AttributeError(name)
        object.__setattr__(made, name, value)
    return made


def _type_of(node: TreeNode) -> Any:
    known = named_types()
    if node.path not in known:
        raise FormatError(f"The type {node.path!r} in a pytree of the file is unknown.")
    return known[node.path]


def _named_tuple(path: str, names: Sequence[Any], children: Sequence[Any]) -> Any:
    cls: Any = find_class(path)
    fields = tuple(names)
    if cls is None or not is_named_tuple(cls) or cls._fields != fields:
        cls = named_tuple_class(path, fields)
    if cls is None:
        return UnknownNode(path, names, children, None)
    return tuple.__new__(cls, children)
