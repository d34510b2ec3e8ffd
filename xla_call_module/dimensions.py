"""Symbolic dimensions: the text that `jax.export` gives them, read, solved and evaluated.

A dimension is an `int`, or the text of a dimension expression as `str(dim)` prints it in JAX:
`b`, `2*b`, `floordiv(b, 3) + 1`. The text is what files carry, so it must be understood without
JAX; its grammar is that of `jax.export.symbolic_shape`
(https://docs.jax.dev/en/latest/export/shape_poly.html). What it means is computed by the arithmetic
of `size_polynomials`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from xla_call_module.errors import StructureError
from xla_call_module.size_polynomials import Size, floordiv, maximum, minimum, mod, symbol

Dim = int | str
Shape = tuple[Dim, ...]

# The size that a part of an expression is; None where one of its variables has no value, and where
# it is not linear though it is asked to be.
_Value = int | Size | None

# The text comes from files, so what it may ask for has bounds; XLA's sizes are 64-bit numbers.
_MAX_LENGTH = 10_000
_MAX_DEPTH = 64
MAX_EXPONENT = 64
_MAX_SIZE = 1 << 63

_TOKEN = re.compile(r"\s*(?:([0-9]{1,20})|([^\W\d]\w*)|([-+*^(),]))")
_IDENTIFIER = re.compile(r"\b[^\W\d]\w*")
_FUNCTIONS: Mapping[str, Callable[[int | Size, int | Size], int | Size]] = {
    "floordiv": floordiv,
    "mod": mod,
    "max": maximum,
    "min": minimum,
}
_OPERATIONS: Mapping[str, Callable[[int | Size, int | Size], int | Size]] = {
    **_FUNCTIONS,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
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

    Example:
        >>> evaluate("floordiv(b, 3) + 1", {"b": 7})
        3
    """
    if isinstance(dim, int):
        return dim
    if (known := values.get(dim)) is not None:
        return known
    value = _ExpressionReader(dim, values).read()
    assert not isinstance(value, Size), "its variables are numbers"
    return value


def evaluate_shape(shape: Shape, values: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return the value of each dimension, as `evaluate` does."""
    return tuple(evaluate(dim, values) for dim in shape)


def linear_form(dim: str) -> tuple[str, int, int] | None:
    """Return variable, slope and constant of an expression such as `2*b + 1`; None for other forms.

    Example:
        >>> linear_form("2*b + 1")
        ('b', 2, 1)
    """
    names = symbols(dim)
    if len(names) != 1:
        return None
    (name,) = names
    form = _slope_and_constant(dim, name, {})
    return None if form is None else (name, *form)


def _slope_and_constant(dim: str, name: str, values: Mapping[str, int]) -> tuple[int, int] | None:
    """Return slope and constant of an expression of one variable; None if it is not linear."""
    value = _ExpressionReader(dim, {**values, name: symbol(name)}).read()
    if value is None or isinstance(value, int):
        return None if value is None else (0, value)
    constant = dict(value.terms).get((), 0)
    return next(number for atoms, number in value.terms if atoms), constant


def parse_size(dim: Dim) -> int | Size:
    """Return the size that an expression is, as a polynomial of its variables.

    Example:
        >>> parse_size("2*b") == 2 * symbol("b"), parse_size("mod(7, 4)")
        (True, 3)
    """
    if isinstance(dim, int):
        return dim
    variables = {name: symbol(name) for name in symbols(dim)}
    size = _ExpressionReader(dim, variables, only_linear=False).read()
    assert size is not None, "every variable is a size"
    return size


def solve(shapes: Sequence[Shape], sizes: Sequence[Sequence[int | None] | None]) -> dict[str, int]:
    """Return the dimension variables that follow from shapes that arrived."""
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
    slope, constant = _slope_and_constant(dim, name, values) or (0, 0)
    return None if slope == 0 or (size - constant) % slope else (size - constant) // slope


def _is_linear(operation: str, left: int | Size, right: int | Size) -> bool:
    """Return whether an operation of linear expressions is surely one."""
    sizes = isinstance(left, Size) + isinstance(right, Size)
    return sizes == 0 or operation in ("+", "-") or (operation == "*" and sizes == 1)


class _ExpressionReader:
    """One pass over the text of an expression, which is read and evaluated at once.

    Of text from files products and functions of sizes are not multiplied out, which may take for
    ever: there the variables are numbers, but for one at most, and the result is linear in that.
    """

    def __init__(
        self, dim: str, values: Mapping[str, int | Size], *, only_linear: bool = True
    ) -> None:
        self._dim = dim
        self._values = values
        self._only_linear = only_linear
        self._tokens = self._split()
        self._depth = 0

    def read(self) -> _Value:
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

    def _sum(self) -> _Value:
        sign = self._sign() or "+"
        total: _Value = 0
        while sign:
            total = self._combine(sign, total, self._product())
            sign = self._sign()
        return total

    def _sign(self) -> str:
        return self._tokens.pop() if self._tokens[-1] in ("+", "-") else ""

    def _product(self) -> _Value:
        product = self._power()
        while self._tokens[-1] == "*":
            self._take("*")
            product = self._combine("*", product, self._power())
        return product

    def _power(self) -> _Value:
        base = self._factor()
        if self._tokens[-1] != "^":
            return base
        self._take("^")
        token = self._tokens.pop()
        if not token.isdecimal() or int(token) > MAX_EXPONENT:
            raise self._error(f"{token!r} is not an exponent up to {MAX_EXPONENT}")
        power: _Value = None if base is None else 1
        for _ in range(int(token)):
            power = self._combine("*", power, base)
        return power

    def _factor(self) -> _Value:
        token = self._tokens.pop()
        if token == "-" and self._tokens[-1].isdecimal():
            return self._checked(-int(self._tokens.pop()))
        if token.isdecimal():
            return self._checked(int(token))
        if token in _FUNCTIONS:
            return self._call(token)
        if not token.isidentifier():
            raise self._error(f"{token or 'its end'!r} is not expected there")
        return self._values.get(token)

    def _call(self, function: str) -> _Value:
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

    def _combine(self, operation: str, left: _Value, right: _Value) -> _Value:
        if left is None or right is None:
            return None
        if self._only_linear and not _is_linear(operation, left, right):
            return None
        if operation in ("floordiv", "mod") and right == 0:
            raise self._error(f"it divides by zero at {dict(self._values)}")
        return self._checked(_OPERATIONS[operation](left, right))

    def _checked(self, value: int | Size) -> int | Size:
        numbers = [value] if isinstance(value, int) else [number for _, number in value.terms]
        if max(map(abs, numbers)) >= _MAX_SIZE:
            raise self._error("it reaches sizes of 64 bits and more")
        return value

    def _take(self, expected: str) -> None:
        if (token := self._tokens.pop()) != expected:
            raise self._error(
                f"{token or 'its end'!r} stands where {expected or 'its end'!r} belongs"
            )

    def _error(self, reason: str) -> StructureError:
        text = f"{self._dim[:80]}…" if len(self._dim) > 80 else self._dim
        return StructureError(
            f"{text!r} is not a dimension expression of jax.export: {reason}. To do: write it as "
            "2*b+1, or mod(b, 2)."
        )
