"""Shape assertions that only the run of a graph can decide.

A module makes its own, and TensorFlow's message is as clear as JAX's; but where shapes that do not
fit make the module wrong before its assertions are reached, or where a static dimension differs, it
is one of MLIR's verifier. So a graph in which sizes are unknown asserts them in front of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xla_call_module.call import CallModule
from xla_call_module.dimensions import linear_form

__all__ = ["SizeAssertion", "open_assertions"]

_Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SizeAssertion:
    """One size of an operand has to be `slope * variable + constant`.

    Attributes:
        operand: which of `call.operands`.
        axis: its dimension; None where what has to be so is its rank.
        variable: name of the dimension variable; empty for none, where the slope is 0.
        source: the operand and the axis of which the variable is the size.
        slope: a whole number.
        constant: a whole number.
    """

    operand: int
    axis: int | None
    variable: str
    source: _Place
    slope: int
    constant: int


def open_assertions(
    call: CallModule, sizes: Sequence[Sequence[int | None] | None]
) -> list[SizeAssertion]:
    """What is still to be asserted of operands when they are there.

    Args:
        call: what will be called.
        sizes: for each of `call.operands` the shape that is known, which `bind_symbols` has found
            to fit; None where unknown, or unknown in all.

    Returns:
        An assertion for each rank and size that is unknown, or whose variable is. Those are left to
        the module that are not linear in one variable that is itself the size of something.
    """
    places = [
        (operand, axis, dim, size)
        for operand, (spec, arrived) in enumerate(zip(call.operands, sizes, strict=True))
        for axis, (dim, size) in enumerate(zip(spec.shape or (), arrived or (), strict=False))
    ]
    sources: dict[str, tuple[_Place, int | None]] = {}
    for operand, axis, dim, size in places:
        if isinstance(dim, str) and linear_form(dim) == (dim, 1, 0):
            sources.setdefault(dim, ((operand, axis), size))
    found = [
        SizeAssertion(operand, None, "", (operand, 0), 0, len(spec.shape))
        for operand, (spec, arrived) in enumerate(zip(call.operands, sizes, strict=True))
        if spec.shape is not None and arrived is None
    ]
    for operand, axis, dim, size in places:
        here = (operand, axis)
        if isinstance(dim, int):
            if size is None:
                found.append(SizeAssertion(operand, axis, "", here, 0, dim))
        elif (form := linear_form(dim)) is not None and form[0] in sources:
            source, value = sources[form[0]]
            if source != here and None in (size, value):
                found.append(SizeAssertion(operand, axis, form[0], source, form[1], form[2]))
    return found
