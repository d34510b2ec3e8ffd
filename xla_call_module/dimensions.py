"""Symbolic dimensions: the text that `jax.export` gives them, solved and evaluated.

A dimension is an `int`, or the text of a dimension expression as `str(dim)` prints it in JAX:
`b`, `2*b`, `floordiv(b, 3) + 1`. The text is what files carry, so it must be understood without
JAX; its grammar is that of `jax.export.symbolic_shape`
(https://docs.jax.dev/en/latest/export/shape_poly.html).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from xla_call_module.errors import StructureError

__all__ = [
    "MAX_EXPONENT",
    "Dim",
    "Shape",
    "aval_text",
    "evaluate",
    "evaluate_shape",
    "linear_form",
    "solve",
    "symbols",
]

Dim = int | str
Shape = tuple[Dim, ...]

# `constant + slope * unknown`; None where a part has no such form, because one of its variables has
# no value or because it is not linear.
_Linear = tuple[int, int] | None

# The text comes from files, so what it may ask for has bounds; XLA's sizes are 64-bit numbers.
_MAX_LENGTH = 10_000
_MAX_DEPTH = 64
MAX_EXPONENT = 64
_MAX_SIZE = 1 << 63

_TOKEN = re.compile(r"\s*(?:([0-9]{1,20})|([^\W\d]\w*)|([-+*^(),]))")
_IDENTIFIER = re.compile(r"\b[^\W\d]\w*")
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


def aval_text(dtype: object, shape: Sequence[object] | None) -> str:
    """Return an aval as JAX prints it, such as `float32[b,3]`; None is a shape of unknown rank."""
    return f"{dtype}[{'...' if shape is None else ','.join(map(str, shape))}]"


def symbols(dim: Dim) -> frozenset[str]:
    """Return the names of the dimension variables in an expression."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(_IDENTIFIER.findall(dim)) - _FUNCTIONS.keys()


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """Return the value of an expression, or None while one of its variables has none.

    Raises:
        StructureError: the text is no dimension expression, or its value is no size.

    Example:
        >>> evaluate("floordiv(b, 3) + 1", {"b": 7})
        3
    """
    if isinstance(dim, int):
        return dim
    if (known := values.get(dim)) is not None:
        return known
    value = _ExpressionReader(dim, values).read()
    return None if value is None else value[0]


def evaluate_shape(shape: Shape, values: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return the value of each dimension, as `evaluate` does."""
    return tuple(evaluate(dim, values) for dim in shape)


def linear_form(dim: str) -> tuple[str, int, int] | None:
    """Return variable, slope and constant of an expression such as `2*b + 1`; None for other forms.

    Raises:
        StructureError: the text is no dimension expression.

    Example:
        >>> linear_form("2*b + 1")
        ('b', 2, 1)
    """
    names = symbols(dim)
    if len(names) != 1:
        return None
    (name,) = names
    form = _ExpressionReader(dim, {}, unknown=name).read()
    return None if form is None else (name, form[1], form[0])


def solve(shapes: Sequence[Shape], sizes: Sequence[Sequence[int | None] | None]) -> dict[str, int]:
    """Return the dimension variables that follow from shapes that arrived.

    Args:
        shapes: the specified shapes.
        sizes: for each of them the sizes that arrived; None where unknown, or unknown in all.

    Returns:
        Values of those variables that occur alone in some dimension, by a linear expression with
        whole coefficients; variables that only occur otherwise are absent.

    Raises:
        StructureError: a text among the shapes is no dimension expression.
    """
    pending = [
        (dim, size)
        for shape, arrived in zip(shapes, sizes, strict=True)
        for dim, size in zip(shape, arrived or (), strict=False)
        if isinstance(dim, str) and size is not None
    ]
    values: dict[str, int] = {}
    progress = True
    while progress:
        progress = False
        for dim, size in pending:
            unknown = sorted(symbols(dim) - values.keys())
            if len(unknown) != 1:
                continue
            root = _linear_root(dim, unknown[0], size, values)
            if root is not None:
                values[unknown[0]] = root
                progress = True
    return values


def _linear_root(dim: str, name: str, size: int, values: Mapping[str, int]) -> int | None:
    """Return the whole number at which `dim`, if linear in `name`, is `size`."""
    if dim == name:
        return size
    form = _ExpressionReader(dim, values, unknown=name).read()
    if form is None or form[1] == 0 or (size - form[0]) % form[1]:
        return None
    return (size - form[0]) // form[1]


class _ExpressionReader:
    """One pass over the text of an expression, which is read and evaluated at once."""

    def __init__(self, dim: str, values: Mapping[str, int], *, unknown: str = "") -> None:
        self._dim = dim
        self._values = values
        self._unknown = unknown
        self._tokens = self._split()
        self._depth = 0

    def read(self) -> _Linear:
        value = self._sum()
        self._take("")
        return value

    def _split(self) -> list[str]:
        """Return the tokens, last one first; the empty one is the end."""
        if len(self._dim) > _MAX_LENGTH:
            raise StructureError(
                f"A dimension expression of {len(self._dim)} characters; at most {_MAX_LENGTH} "
                "are read. To do: write it shorter."
            )
        tokens, position, end = [], 0, len(self._dim.rstrip())
        while position < end:
            if (match := _TOKEN.match(self._dim, position)) is None:
                raise self._error(f"{self._dim[position : position + 20]!r} is not expected there")
            tokens.append(match[match.lastindex or 0])
            position = match.end()
        return ["", *reversed(tokens)]

    def _sum(self) -> _Linear:
        sign = self._sign() or "+"
        total: _Linear = (0, 0)
        while sign:
            total = self._combine(sign, total, self._product())
            sign = self._sign()
        return total

    def _sign(self) -> str:
        return self._tokens.pop() if self._tokens[-1] in ("+", "-") else ""

    def _product(self) -> _Linear:
        product = self._power()
        while self._tokens[-1] == "*":
            self._take("*")
            product = self._combine("*", product, self._power())
        return product

    def _power(self) -> _Linear:
        base = self._factor()
        if self._tokens[-1] != "^":
            return base
        self._take("^")
        token = self._tokens.pop()
        if not token.isdecimal() or int(token) > MAX_EXPONENT:
            raise self._error(f"{token!r} is no exponent up to {MAX_EXPONENT}")
        power: _Linear = None if base is None else (1, 0)
        for _ in range(int(token)):
            power = self._combine("*", power, base)
        return power

    def _factor(self) -> _Linear:
        token = self._tokens.pop()
        if token == "-" and self._tokens[-1].isdecimal():
            return self._checked(-int(self._tokens.pop()), 0)
        if token.isdecimal():
            return self._checked(int(token), 0)
        if token in _FUNCTIONS:
            return self._call(token)
        if token == self._unknown != "":
            return 0, 1
        if not token.isidentifier():
            raise self._error(f"{token or 'its end'!r} is not expected there")
        return None if token not in self._values else (self._values[token], 0)

    def _call(self, function: str) -> _Linear:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"it is nested more than {_MAX_DEPTH} deep")
        self._take("(")
        left = self._sum()
        self._take(",")
        right = self._sum()
        self._take(")")
        self._depth -= 1
        return self._combine(function, left, right)

    def _combine(self, operation: str, left: _Linear, right: _Linear) -> _Linear:
        if left is None or right is None:
            return None
        (a, slope_a), (b, slope_b) = left, right
        if operation in ("+", "-"):
            sign = 1 if operation == "+" else -1
            return self._checked(a + sign * b, slope_a + sign * slope_b)
        if operation == "*":
            if slope_a and slope_b:
                return None
            return self._checked(a * b, a * slope_b + b * slope_a)
        if slope_a or slope_b:
            return None
        try:
            return self._checked(_FUNCTIONS[operation](a, b), 0)
        except ZeroDivisionError as error:
            raise self._error(f"it divides by zero at {dict(self._values)}") from error

    def _checked(self, constant: int, slope: int) -> _Linear:
        if max(abs(constant), abs(slope)) >= _MAX_SIZE:
            raise self._error("it reaches sizes of 64 bits and more")
        return constant, slope

    def _take(self, expected: str) -> None:
        if (token := self._tokens.pop()) != expected:
            raise self._error(
                f"{token or 'its end'!r} stands where {expected or 'its end'!r} belongs"
            )

    def _error(self, reason: str) -> StructureError:
        text = f"{self._dim[:80]}…" if len(self._dim) > 80 else self._dim
        return StructureError(
            f"{text!r} is no dimension expression of jax.export: {reason}. To do: write it as "
            "2*b+1, or mod(b, 2)."
        )
