"""Sizes of operands that a module has fixed, and that only the run of a graph knows.

Where one differs, TensorFlow's message is one of MLIR's verifier. What a module asserts of its
dimension variables is another thing, and in `shape_guard`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xla_call_module.call import CallModule

__all__ = ["SizeAssertion", "open_assertions"]


@dataclass(frozen=True, slots=True)
class SizeAssertion:
    """A size, or the rank, that an operand has to have.

    Attributes:
        operand: which of `call.operands`.
        axis: its dimension; None for its rank.
        size: what that has to be.
    """

    operand: int
    axis: int | None
    size: int


def open_assertions(
    call: CallModule, sizes: Sequence[Sequence[int | None] | None]
) -> list[SizeAssertion]:
    """Return the fixed sizes to assert of operands whose own sizes are unknown.

    Args:
        call: what will be called.
        sizes: for each of `call.operands` the shape that is known, which `bind_symbols` has found
            to fit; None where unknown, or unknown in all.
    """
    found: list[SizeAssertion] = []
    for operand, (spec, arrived) in enumerate(zip(call.operands, sizes, strict=True)):
        shape = spec.shape or ()
        if arrived is None and spec.shape is not None:
            found.append(SizeAssertion(operand, None, len(shape)))
        known = arrived or ()
        found += [
            SizeAssertion(operand, axis, dim)
            for axis, (dim, size) in enumerate(zip(shape, known, strict=False))
            if isinstance(dim, int) and size is None
        ]
    return found
