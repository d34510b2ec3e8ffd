"""The attributes of an operation in a parsed module, as Python has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xla_call_module._jax import ir

__all__ = ["Attributes", "dictionary", "read_changes", "write_changes"]

# What was done to a module, in words. MLIR keeps attributes of dialects that it does not know, such
# as `jax.uses_shape_polymorphism`.
_CHANGES = "jax_tf_bridge.changes"


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of an operation.

    Attributes:
        raw: the operation, as MLIR has it.
    """

    raw: Any

    def has(self, name: str) -> bool:
        """Whether there is an attribute of this name."""
        return name in self.raw.attributes

    def text(self, name: str) -> str:
        """An attribute as MLIR prints it, a string without its quotes; empty if it is missing."""
        return str(self.raw.attributes[name]).strip('"') if self.has(name) else ""

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute such as `1 : i64`."""
        return int(self.raw.attributes[name].value) if self.has(name) else default

    def flag(self, name: str) -> bool:
        """An attribute `true` or `false`; false if it is missing."""
        return self.text(name).startswith("true")

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute such as `array<i64: 0, 1>`; empty if it is missing."""
        return tuple(map(int, self.raw.attributes[name])) if self.has(name) else ()

    def matrix(self, name: str) -> np.ndarray[Any, Any] | None:
        """An attribute of dense integers, such as a convolution's padding; None if missing."""
        return np.asarray(self.raw.attributes[name]) if self.has(name) else None

    def fields(self, name: str) -> dict[str, tuple[int, ...]]:
        """The numbers in an attribute such as `#stablehlo.dot<lhs_batching_dimensions = [0]>`."""
        found = re.findall(r"(\w+) = (?:\[([-\d, ]*)\]|(-?\d+))", self.text(name))
        return {
            key: tuple(map(int, re.findall(r"-?\d+", several or one)))
            for key, several, one in found
        }


def dictionary(attribute: Any) -> dict[str, Any]:
    """Return the attributes in a dictionary attribute by their names.

    Raises:
        ValueError: it is another attribute.
    """
    entries: Any = ir.DictAttr(attribute)  # its stub does not know that it is iterable
    return {entry.name: entry.attr for entry in entries}


def read_changes(module: Any) -> tuple[str, ...]:
    """Return what `write_changes` noted down in a parsed module."""
    attributes = module.operation.attributes
    if _CHANGES not in attributes:
        return ()
    try:
        return tuple(ir.StringAttr(each).value for each in ir.ArrayAttr(attributes[_CHANGES]))
    except (TypeError, ValueError):  # another program's attribute of that name
        return ()


def write_changes(module: Any, changes: Sequence[str]) -> None:
    """Note down, in place, what was done to a module, for an `Exported` that has no other place."""
    context = module.context
    texts = [ir.StringAttr.get(change, context) for change in changes]
    module.operation.attributes[_CHANGES] = ir.ArrayAttr.get(texts, context)
