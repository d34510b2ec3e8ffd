"""The check of the options that a function hands on by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any


def check_keywords(function: Callable[..., Any], options: Mapping[str, Any], known: Any) -> None:
    """Refuse keyword arguments that a function hands on and that nothing takes, as Python does."""
    names = [*inspect.signature(function).parameters, *known.__optional_keys__]
    for name in sorted(options.keys() - known.__optional_keys__):
        near = get_close_matches(name, names, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
