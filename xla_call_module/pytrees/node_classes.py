"""Classes of pytree nodes by their public names, and what stands for those that are not here.

Nothing is imported: a class is found where the process has it already.
"""

from __future__ import annotations

import functools
import keyword
import sys
from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import tree_util

from xla_call_module._jax import pytree_classes
from xla_call_module.errors import StructureError
from xla_call_module.pytrees.tree_nodes import TreeNode

_LOCAL = "<locals>"


def path_of(value: Any) -> str:
    """Return `module:name` of a class or function, and `module:name()` of an instance."""
    if isinstance(value, MissingFunction):
        return value.path
    if not isinstance(getattr(value, "__qualname__", None), str):
        return f"{path_of(type(value))}()"
    return f"{value.__module__}:{value.__qualname__}"


def public_path(cls: type) -> str:
    """Return `module:name` of a class, without private modules where a public one has it, too."""
    module, _, name = path_of(cls).partition(":")
    if not any(part.startswith("_") for part in module.split(".")) or "." in name:
        return f"{module}:{name}"
    public = [home for home, value in _attributes(module, name) if value is cls]
    return f"{min(public, key=lambda m: (m.count('.'), m), default=module)}:{name}"


def find_class(path: str) -> type | None:
    """Return the class that has this path in this process, imported already; None for none.

    One that has moved is found in another module of the same package.
    """
    module, _, name = path.partition(":")
    if _LOCAL in name:
        return _single(cls for cls in _local_classes() if path_of(cls) == path)
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        # Looking up an attribute may import a module.
        value = getattr(value, "__dict__", {}).get(part)
    if isinstance(value, type):
        return value
    moved = (moved for _, moved in _attributes(module, name))
    return _single(cls for cls in moved if isinstance(cls, type))


def _single(candidates: Iterator[type]) -> type | None:
    classes = set(candidates)
    return classes.pop() if len(classes) == 1 else None


def _local_classes() -> Iterator[type]:
    """Classes of pytree nodes, of which some were made in functions."""
    yield from pytree_classes()
    yield from tuple.__subclasses__()


def _attributes(module: str, name: str) -> Iterator[tuple[str, Any]]:
    """Return the public modules of the same package that are imported and have this name."""
    package = module.partition(".")[0]
    for home, imported in list(sys.modules.items()):
        if (home == package or home.startswith(f"{package}.")) and "._" not in f".{home}":
            value = getattr(imported, "__dict__", {}).get(name)
            if value is not None:
                yield home, value


def is_named_tuple(cls: type) -> bool:
    """Return whether JAX takes instances of a class for named tuples."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and cls not in pytree_classes()


class _StandIn:
    """The mark of a named tuple whose class is not here."""

    __slots__ = ()


def is_stand_in(cls: type) -> bool:
    """Return whether a class is here for another one that is not."""
    return issubclass(cls, (UnknownNode, _StandIn))


def _is_field(name: Any) -> bool:
    """Return whether a field of a named tuple may have the name."""
    is_name = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
    return is_name and not keyword.iskeyword(name)


@functools.lru_cache(maxsize=256)
def named_tuple_class(path: str, names: tuple[Any, ...]) -> type | None:
    """Return a named tuple for a class that is not here; None where no field can have a name."""
    module, _, name = path.partition(":")
    short = name.rpartition(".")[2]
    is_class = short.isidentifier() and not keyword.iskeyword(short)
    if not is_class or not all(map(_is_field, names)) or len(set(names)) != len(names):
        return None
    # Its fields are those of the file, which nobody knows here.
    made: Any = namedtuple(short, names)  # type: ignore[misc]
    cls = type(short, (_StandIn, made), {"__slots__": (), "__module__": module})
    cls.__qualname__ = name
    return cls


@tree_util.register_pytree_with_keys_class
class UnknownNode:
    """A pytree node of a class that this process has not imported: its children by their names.

    They are attributes and items: `node.weight` and `node["weight"]`.
    """

    __slots__ = ("_children", "_names", "_path", "_static")

    def __init__(
        self, path: str, names: Sequence[Any], children: Sequence[Any], static: TreeNode | None
    ) -> None:
        """Take over what a file says of it."""
        self._path = path
        self._names = tuple(names)
        self._children = tuple(children)
        self._static = static

    def keys(self) -> tuple[Any, ...]:
        """Return the names of the children."""
        return self._names

    def __getitem__(self, name: Any) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._children[self._names.index(name)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"{self._path} has no field {name!r}; it has {self._names}.")
        return self[name]

    def __repr__(self) -> str:
        pairs = zip(self._names, self._children, strict=True)
        fields = ", ".join(f"{name}={child!r}" for name, child in pairs)
        return f"{self._path.rpartition(':')[2]}({fields})"

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Return the children by their names, and all else."""
        keys = [
            tree_util.GetAttrKey(name) if isinstance(name, str) else tree_util.DictKey(name)
            for name in self._names
        ]
        return tuple(zip(keys, self._children, strict=True)), (
            self._path,
            self._names,
            self._static,
        )

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> UnknownNode:
        """Return the node that `tree_flatten_with_keys` took apart."""
        path, names, rest = static
        return cls(path, names, children, rest)


@dataclass(frozen=True, slots=True)
class MissingFunction:
    """A function that is static data of an argument or result, and that no file can hold.

    Attributes:
        path: the function, as `module:name`.
        number: the number that equal functions share.
    """

    path: str
    number: int

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse to be called."""
        raise StructureError(
            f"{self.path} was a function in an exported pytree, and a file has no functions. To "
            "do: put it back, as in state.replace(apply_fn=model.apply)."
        )
