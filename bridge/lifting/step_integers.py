"""Integers in a loop that follow from the number of its step, such as the index of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core

from bridge.core._jax import is_certain
from bridge.lifting.known_values import Dimension

Atom = Any  # a variable or a literal of a jaxpr

# Of integers these make others; those of shapes keep the only element.
_LINEAR = ("add", "clamp", "convert_element_type", "mul", "select_n", "sub")
_SHAPES = ("broadcast_in_dim", "reshape", "squeeze")


@dataclass(frozen=True, slots=True)
class Line:
    """An integer that is `slope * step + offset`.

    Attributes:
        slope: what each step adds.
        offset: what it is in step 0: a number, or a symbolic size.
    """

    slope: int
    offset: Dimension

    def bounds(self, count: Dimension) -> tuple[Dimension, Dimension]:
        """Return the least and the greatest value in some steps."""
        last = self.slope * (count - 1) + self.offset
        return (self.offset, last) if self.slope >= 0 else (last, self.offset)


class Lines:
    """The integers of a jaxpr that are lines, in loops of some number of steps."""

    def __init__(
        self, program: Any, given: Mapping[Any, Line] | None = None, count: Dimension = 1
    ) -> None:
        """Find them.

        Args:
            program: the closed jaxpr.
            given: the lines among its arguments.
            count: the number of steps, of which nothing is said if it is 0.
        """
        self._constants = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self._makers = {made: eqn for eqn in program.jaxpr.eqns for made in eqn.outvars}
        self._lines = dict(given or {})
        self._count = count
        for eqn in program.jaxpr.eqns:
            line = self._made_by(eqn)
            if line is not None and self.fits(line, eqn.outvars[0].aval.dtype):
                self._lines[eqn.outvars[0]] = line

    def of(self, atom: Atom) -> Line | None:
        """Return a variable or literal as a line; None if it is none."""
        number = _number(atom.val if isinstance(atom, core.Literal) else self._constants.get(atom))
        if number is not None:
            return Line(0, number)
        return None if isinstance(atom, core.Literal) else self._lines.get(atom)

    def fits(self, line: Line, dtype: np.dtype[Any]) -> bool:
        """Return whether no value is beyond the range of a dtype, as no size is beyond int32."""
        if dtype.kind not in "iu":
            return False
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        least, most = self.bounds(line)
        return (is_certain(lambda: least >= low) or (_is_size(least) and low <= -_SIZES)) and (
            is_certain(lambda: most <= high) or (_is_size(most) and high >= _SIZES - 1)
        )

    def bounds(self, line: Line) -> tuple[Dimension, Dimension]:
        """Return the least and the greatest value in all steps."""
        return line.bounds(self._count)

    def _made_by(self, eqn: Any) -> Line | None:
        name = eqn.primitive.name
        if name == "dim_as_value":
            return Line(0, eqn.params["dim"])
        has_one = all(np.shape(atom.aval) in ((), (1,)) for atom in (*eqn.invars, *eqn.outvars))
        if name not in (*_LINEAR, *_SHAPES) or not has_one:
            return None
        if name == "select_n":
            return self._chosen(eqn)
        lines = [line for atom in eqn.invars if (line := self.of(atom)) is not None]
        return self._combined(name, lines) if len(lines) == len(eqn.invars) else None

    def _combined(self, name: str, lines: list[Line]) -> Line | None:
        """Return what a linear operation makes of lines."""
        match name, lines:
            case (("convert_element_type" | "broadcast_in_dim" | "reshape" | "squeeze"), [one]):
                return one
            case "clamp", [low, one, high] if low.slope == high.slope == 0:
                least, most = self.bounds(one)
                is_inside = is_certain(lambda: least >= low.offset) and is_certain(
                    lambda: most <= high.offset
                )
                return one if is_inside else None
            case "add", [one, other]:
                return Line(one.slope + other.slope, one.offset + other.offset)
            case "sub", [one, other]:
                return Line(one.slope - other.slope, one.offset - other.offset)
            case "mul", [one, other] if 0 in (one.slope, other.slope):
                factor, scaled = (one, other) if one.slope == 0 else (other, one)
                if scaled.slope == 0 or isinstance(factor.offset, int):
                    return Line(factor.offset * scaled.slope, factor.offset * scaled.offset)
        return None

    def _chosen(self, eqn: Any) -> Line | None:
        """Return which of two integers a comparison chooses in all steps, such as `i < 0`."""
        which = eqn.invars[0]
        compared = None if isinstance(which, core.Literal) else self._makers.get(which)
        if compared is None or compared.primitive.name != "lt" or len(eqn.invars) != 3:
            return None
        left, right = map(self.of, compared.invars)
        if left is None or right is None:
            return None
        least, most = self.bounds(Line(left.slope - right.slope, left.offset - right.offset))
        if is_certain(lambda: most < 0):
            return self.of(eqn.invars[2])
        return self.of(eqn.invars[1]) if is_certain(lambda: least >= 0) else None


# Sizes are numbers of int32 in programs with symbolic ones.
_SIZES = 2**31


def _is_size(number: Dimension) -> bool:
    return bool(export.is_symbolic_dim(number))


def _number(value: Any) -> int | None:
    """Return the only element of a constant, if it is an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if isinstance(value, jax.core.Tracer) or kind not in ("i", "u") or np.size(value) != 1:
        return None
    return int(np.asarray(value).reshape(()))
