"""`UniqueNames`: names for nodes, arguments and variables, none of which is there twice."""

from __future__ import annotations

import re
from collections.abc import Iterable


class UniqueNames:
    """The names that are given away so far.

    It takes as long as there are names, also where thousands of them ask for the same one.

    Example:
        >>> names = UniqueNames(ignore_case=True)
        >>> names.take("w"), names.take("W"), names.take("w_1"), names.take("w")
        ('w', 'W_1', 'w_1_1', 'w_2')
    """

    def __init__(self, *, ignore_case: bool = False) -> None:
        """With `ignore_case`, two names differ by more than the case of their letters."""
        self._ignore_case = ignore_case
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, name: str) -> str:
        """The name, with the first of `_1`, `_2`, … behind it that makes it a new one."""
        base = self._key(name)
        count = self._last.get(base, 0)
        unique = f"{name}_{count}" if count else name
        while (key := self._key(unique)) in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._taken.add(key)
        self._last[base] = count
        return unique

    def _key(self, name: str) -> str:
        return name.lower() if self._ignore_case else name


def scope_names(names: Iterable[str]) -> list[str]:
    """Return names for variables that TensorFlow takes when it saves them again, each another one.

    There each becomes a name scope (`_VALID_OP_NAME_REGEX` in tensorflow/python/framework/ops.py),
    whose last slash is not part of the name (`name_from_scope_name`), and then a node, whose name
    may have less than a scope's (`IsValidNodeName` in tensorflow/core/framework/node_def_util.cc).
    """
    unique, scopes = UniqueNames(), []
    for name in names:
        base = re.sub(r"[^A-Za-z0-9_./-]", "_", name)
        scope = base if re.match(r"[A-Za-z0-9.]", base) else f"variable{base}"
        scopes.append(unique.take(scope.rstrip("/")))
    return scopes
