"""Results of libraries that JAX's functions have not: `info`, workspaces, what is overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.lifting.known_values import Dimension, LiftedValue, StructuredArray
from bridge.lifting.lifted_operation import LiftedOperation
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.elements import read_elements

_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")


@dataclass(frozen=True, slots=True, eq=False)
class LibraryByproduct(StructuredArray):
    """A result of a library call that JAX's primitive does not have, and that nothing uses.

    Attributes:
        op: the library call.
        index: which of its results it is.
    """

    op: LiftedOperation
    index: int

    @property
    def shape(self) -> tuple[Dimension, ...]:
        """The shape in the module, with None for a dynamic size."""
        return self.op.types[self.index].shape

    def array(self) -> Any:
        """Refuse it."""
        self.op.refuse(
            f"its result {self.index} is used, which JAX's own function of it does not return",
            "export a function that uses the results of jax.lax.linalg only",
        )


@dataclass(frozen=True, slots=True, eq=False)
class LibraryStatus(LibraryByproduct):
    """The `info` of a library call, by which JAX fills results with NaN where it failed.

    JAX's primitives do that themselves. So the comparison with zero is known to hold, and what is
    selected by it are the results.

    Attributes:
        is_flag: whether it is what the comparison returned.
    """

    is_flag: bool = False

    def after(self, raw: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
        """Return what the comparison, a broadcast of it, or a selection by it results in."""
        if raw.name == "stablehlo.select" and self.is_flag and operands[0] is self:
            return operands[1]
        if raw.name in _BROADCASTS and operands[0] is self:
            return self
        if raw.name == "stablehlo.compare" and not self.is_flag and operands[0] is self:
            is_passed = comparison_direction(raw) in ("EQ", "GE")
            if is_passed and is_zero(raw.operands[1]):
                return LibraryStatus(self.op, self.index, is_flag=True)
        return None


def is_zero(value: Any) -> bool:
    """Return whether a value of a module is a constant zero in some shape."""
    raw = getattr(value.owner, "operation", value.owner)
    name = getattr(raw, "name", "")
    if name in _BROADCASTS:
        return is_zero(raw.operands[0])
    return name == "stablehlo.constant" and not read_elements(raw).any()
