"""The tables, variables and asset files that a user's functions use.

TensorFlow saves what is an attribute of what is saved; what a function merely closes over it
refuses.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from bridge.serving.framework import tf

__all__ = ["resources_of"]

_DEPTH = 8


def resources_of(functions: Iterable[Any]) -> list[Any]:
    """What functions are methods of, close over, or name among their module's globals."""
    found: dict[int, Any] = {}
    for function in functions:
        for value in _reached(function, set(), _DEPTH):
            if _is_trackable(value):
                found.setdefault(id(value), value)
    return list(found.values())


def _reached(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    yield value
    for below in _used_by(value):
        yield from _reached(below, seen, depth - 1)


def _used_by(value: Any) -> list[Any]:
    """What a value uses, of those kinds in which a user keeps resources."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    function = getattr(value, "python_function", value)
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(getattr(function, "__func__", function))
    used = [] if owner is None or inspect.ismodule(owner) else [owner, *_attributes(owner)]
    if hasattr(function, "func") and hasattr(function, "args"):  # a functools.partial
        return [*used, function.func, *function.args, *function.keywords.values()]
    if not inspect.isfunction(function):
        return used
    names = inspect.getclosurevars(function)
    return [*used, *names.nonlocals.values(), *names.globals.values()]


def _attributes(owner: Any) -> list[Any]:
    """What an object has; of one that TensorFlow saves, that is its functions."""
    values = list(getattr(owner, "__dict__", {}).values())
    return [v for v in values if inspect.isfunction(v)] if _is_trackable(owner) else values


def _is_trackable(value: Any) -> bool:
    """Whether TensorFlow can save it."""
    if isinstance(value, dict | list | tuple | set | frozenset | type) or value is None:
        return False
    if inspect.isroutine(value) or inspect.ismodule(value):
        return False
    try:
        tf.train.Checkpoint(value=value)
    except (ValueError, TypeError):
        return False
    return True
