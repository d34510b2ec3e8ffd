"""The constraints on dimension variables that an export was made with, such as `b >= 8`.

JAX does not serialize them with an `Exported`; the module's shape assertions quote them
(https://docs.jax.dev/en/latest/export/shape_poly.html#user-specified-symbolic-constraints).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xla_call_module._jax import ir
from xla_call_module.call import CallModule
from xla_call_module.dimensions import evaluate
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import is_shape_assertion, open_module, walk

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
        text: the relation as the module quotes it, such as `b>=8`.
    """

    text: str

    def holds(self, values: Mapping[str, int]) -> bool | None:
        """Return whether it holds; None while one of its variables has no value.

        >>> SizeConstraint("b>=8").holds({"b": 4})
        False
        """
        parts = _PARTS.fullmatch(self.text)
        if parts is None:
            return None
        left, right = evaluate(parts[1].strip(), values), evaluate(parts[3].strip(), values)
        if left is None or right is None:
            return None
        return _COMPARISONS[parts[2]](left, right)

    def __str__(self) -> str:
        """Return the text, and for a multiple what a user would have written."""
        multiple = _MULTIPLE.fullmatch(self.text)
        if multiple is None or multiple[2] != multiple["whole"]:
            return self.text
        return f"mod({multiple[2]}, {multiple[1]}) == 0"


def constraints_of(call: CallModule) -> tuple[SizeConstraint, ...]:
    """Return the constraints that the module of a call asserts, each once."""
    return constraints_in(call.module)


def constraints_in(serialized: bytes) -> tuple[SizeConstraint, ...]:
    """Return the constraints that a serialized module asserts, each once."""
    if not mentions(serialized, [b"symbolic shape constraint"]):
        return ()
    texts: dict[str, None] = {}
    with open_module(serialized) as module:
        for operation in walk(module):
            if not is_shape_assertion(operation):
                continue
            message = ir.StringAttr(operation.attributes["error_message"]).value
            texts |= dict.fromkeys(_QUOTED.findall(message))
    return tuple(map(SizeConstraint, texts))


def constraint_texts(call: CallModule) -> list[str]:
    """Return the constraints that a call asserts, and that the sizes of its results are sizes."""
    dims = (dim for spec in call.results for dim in spec.shape or () if "-" in str(dim))
    asserted = [str(constraint) for constraint in constraints_in(call.module)]
    return [*asserted, *(f"{dim} >= 0" for dim in dict.fromkeys(dims))]
