"""The attributes of an operation in a parsed module, as Python has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xla_call_module._jax import ir, stablehlo

# What was done to a module, in words. MLIR keeps attributes of dialects that it does not know, such
# as `jax.uses_shape_polymorphism`.
_CHANGES = "jax_tf_bridge.changes"
_GATHER = ("dimension_numbers", "GatherDimensionNumbers")
# The attribute with the dimension numbers of an operation, and its class.
_DIMENSION_NUMBERS: Mapping[str, tuple[str, str]] = {
    "stablehlo.dot_general": ("dot_dimension_numbers", "DotDimensionNumbers"),
    "stablehlo.dynamic_gather": _GATHER,
    "stablehlo.gather": _GATHER,
    "stablehlo.scatter": ("scatter_dimension_numbers", "ScatterDimensionNumbers"),
}


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of an operation.

    Attributes:
        raw: the operation, as MLIR has it.
    """

    raw: Any

    def has(self, name: str) -> bool:
        """Return whether there is an attribute of this name."""
        return name in self.raw.attributes

    def text(self, name: str) -> str:
        """Return an attribute as MLIR prints it, a string without its quotes; empty if missing."""
        return str(self.raw.attributes[name]).strip('"') if self.has(name) else ""

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute such as `1 : i64`."""
        return int(self.raw.attributes[name].value) if self.has(name) else default

    def flag(self, name: str) -> bool:
        """Return an attribute `true` or `false`; false if it is missing."""
        return self.text(name).startswith("true")

    def integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return an attribute such as `array<i64: 0, 1>`."""
        return tuple(map(int, self.raw.attributes[name])) if self.has(name) else default

    def padding(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the `padding` of a window or convolution before and behind each dimension."""
        if not self.has("padding"):
            return (0,) * rank, (0,) * rank
        low, high = np.asarray(self.raw.attributes["padding"]).reshape(rank, 2).T.tolist()
        return tuple(low), tuple(high)

    def dimension_numbers(self) -> Any:
        """Return the dimension numbers of a dot, a gather or a scatter, as jaxlib has them."""
        name, class_name = _DIMENSION_NUMBERS[self.raw.name]
        return getattr(stablehlo, class_name)(self.raw.attributes[name])


def symbol_name(operation: Any) -> str:
    """Return the name of a function, a module or another operation that others name."""
    return str(ir.StringAttr(operation.attributes["sym_name"]).value)


def callee_of(call: Any) -> str:
    """Return the name of the function that a `func.call` calls."""
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def comparison_direction(comparison: Any) -> str:
    """Return `EQ`, `NE`, `GE`, `GT`, `LE` or `LT`, what a `stablehlo.compare` asks."""
    direction: Any = stablehlo.ComparisonDirectionAttr(
        comparison.attributes["comparison_direction"]
    )
    return str(direction.value)


def value_attributes(function: Any, key: str) -> list[dict[str, Any]]:
    """Return the attributes of each argument or result of a function."""
    if key in function.attributes:
        return list(map(dictionary, function.attributes[key]))
    return [{} for _ in (function.type.inputs if key == "arg_attrs" else function.type.results)]


def dictionary(attribute: Any) -> dict[str, Any]:
    """Return the attributes in a dictionary attribute by their names."""
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
