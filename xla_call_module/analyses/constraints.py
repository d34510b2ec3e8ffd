"""The constraints on dimension variables that an export was made with, such as `b >= 8`.

JAX does not serialize them with an `Exported`; the module's shape assertions quote them
(https://docs.jax.dev/en/latest/export/shape_poly.html#user-specified-symbolic-constraints).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xla_call_module.call import CallModule
from xla_call_module.dimensions import evaluate
from xla_call_module.stablehlo.modules import is_shape_assertion, open_module, walk

__all__ = ["SizeConstraint", "constraints_in", "constraints_of"]

# Strings stand in a module as they are, and reading a large one takes a while.
_SIGN = b"symbolic shape constraint"
_QUOTED = re.compile(r"symbolic shape constraint (.+?)\. Expected")
_PARTS = re.compile(r"(.+?)(>=|<=|==)(.+)")
# JAX keeps `mod(b, 4) == 0` in this form.
_MULTIPLE = re.compile(r"(\d+)\*floordiv\((.+), \1\) == (?P<whole>.+)")
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class SizeConstraint:
    """A relation of two dimension expressions.

    Attributes:
        text: as the module quotes it.
    """

    text: str

    def holds(self, values: Mapping[str, int]) -> bool | None:
        """Whether it holds; None while one of its variables has no value.

        Raises:
            StructureError: a part of it is no dimension expression.

        >>> SizeConstraint("b>=8").holds({"b": 4})
        False
        """
        found = _PARTS.fullmatch(self.text)
        if found is None:
            return None
        left, right = evaluate(found[1].strip(), values), evaluate(found[3].strip(), values)
        if left is None or right is None:
            return None
        return _COMPARISONS[found[2]](left, right)

    def __str__(self) -> str:
        """The text, and for a multiple what a user would have written."""
        found = _MULTIPLE.fullmatch(self.text)
        if found is None or found[2] != found["whole"]:
            return self.text
        return f"mod({found[2]}, {found[1]}) == 0"


def constraints_of(call: CallModule) -> tuple[SizeConstraint, ...]:
    """The constraints that the module of a call asserts, each once.

    Raises:
        FormatError: the module is damaged.
    """
    return constraints_in(call.module)


def constraints_in(serialized: bytes) -> tuple[SizeConstraint, ...]:
    """The constraints that a serialized module asserts, each once.

    Raises:
        FormatError: it is damaged.
    """
    if _SIGN not in serialized:
        return ()
    texts: dict[str, None] = {}
    with open_module(serialized) as module:
        for operation in walk(module):
            if not is_shape_assertion(operation):
                continue
            for quoted in _QUOTED.finditer(str(operation.attributes["error_message"])):
                texts.setdefault(quoted[1])
    return tuple(map(SizeConstraint, texts))
