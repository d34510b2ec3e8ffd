"""The names of what a module is made of: operations, targets of custom calls, element types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.stablehlo.modules import custom_call_target, open_module, tensor_type, walk

_CUSTOM_CALL = "stablehlo.custom_call"


@dataclass(frozen=True, slots=True)
class ModuleContents:
    """The names of what a module is made of.

    Attributes:
        elements: the element types of all values, by MLIR's names.
    """

    operations: frozenset[str]
    custom_calls: frozenset[str]
    elements: frozenset[str]

    @classmethod
    def of(cls, call: CallModule) -> ModuleContents:
        """Return those of the module of a call."""
        with open_module(call.module) as module:
            operations = list(walk(module))
            types = {str(value.type) for operation in operations for value in _values(operation)}
            return cls(
                frozenset(one.name for one in operations),
                frozenset(custom_call_target(o) for o in operations if o.name == _CUSTOM_CALL),
                frozenset(tensor_type(t).element for t in types if t.startswith("tensor<")),
            )


def _values(operation: Any) -> Iterator[Any]:
    """Yield the results of an operation and the arguments of its blocks."""
    yield from operation.results
    for region in operation.regions:
        for block in region.blocks:
            yield from block.arguments
