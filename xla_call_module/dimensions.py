"""Symbolic dimensions: the text that `jax.export` gives them, solved and evaluated.

A dimension is an `int`, or the text of a dimension expression as `str(dim)` prints it in JAX:
`b`, `2*b`, `floordiv(b, 3) + 1`. The text is what files carry, so it must be understood without
JAX; its grammar is that of `jax.export.symbolic_shape`
(https://docs.jax.dev/en/latest/export/shape_poly.html).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from xla_call_module.errors import StructureError

__all__ = ["Dim", "Shape", "evaluate", "evaluate_shape", "solve", "symbols"]

Dim = int | str
Shape = tuple[Dim, ...]

_MAX_LENGTH = 2000
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def symbols(dim: Dim) -> frozenset[str]:
    """The names of the dimension variables in an expression."""
    if isinstance(dim, int):
        return frozenset()
    return frozenset(_IDENTIFIER.findall(dim)) - _FUNCTIONS.keys()


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """The value of an expression, or None while one of its variables has none.

    Raises:
        StructureError: the text is no dimension expression.
    """
    if isinstance(dim, int):
        return dim
    if (known := values.get(dim)) is not None:
        return known
    tree = _parse(dim)
    if not symbols(dim) <= values.keys():
        return None
    try:
        return _evaluate_node(tree, values, dim)
    except ZeroDivisionError as error:
        raise StructureError(f"The dimension {dim!r} divides by zero at {dict(values)}.") from error


def evaluate_shape(shape: Shape, values: Mapping[str, int]) -> tuple[int | None, ...]:
    """`evaluate` for each dimension."""
    return tuple(evaluate(dim, values) for dim in shape)


def solve(shapes: Sequence[Shape], sizes: Sequence[Sequence[int | None] | None]) -> dict[str, int]:
    """The dimension variables that follow from shapes that arrived.

    Args:
        shapes: the specified shapes.
        sizes: for each of them the sizes that arrived; None where unknown, or unknown in all.

    Returns:
        Values of those variables that occur alone in some dimension, by a linear expression with
        whole coefficients; variables that only occur otherwise are absent.
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
    """The whole number at which `dim`, if linear in `name`, is `size`."""
    if dim == name:
        return size
    if any(function in dim for function in _FUNCTIONS) or "//" in dim or "%" in dim:
        return None
    at = [evaluate(dim, {**values, name: x}) for x in range(3)]
    zero, one, two = (value if value is not None else 0 for value in at)
    slope = one - zero
    if slope == 0 or two - one != slope or (size - zero) % slope:
        return None
    return (size - zero) // slope


def _parse(dim: str) -> ast.expr:
    if len(dim) > _MAX_LENGTH:
        raise StructureError(
            f"A dimension expression of {len(dim)} characters; at most {_MAX_LENGTH} are read."
        )
    try:
        return ast.parse(dim.replace("^", "**"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise StructureError(f"{dim!r} is no dimension expression of jax.export.") from error


def _evaluate_node(node: ast.expr, values: Mapping[str, int], dim: str) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate_node(operand, values, dim)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = _evaluate_node(left, values, dim), _evaluate_node(right, values, dim)
            if isinstance(op, ast.Pow) and not 0 <= b <= 16:
                raise StructureError(f"The exponent {b} in the dimension {dim!r} is out of range.")
            return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](
                _evaluate_node(left, values, dim), _evaluate_node(right, values, dim)
            )
    raise StructureError(f"{ast.dump(node)[:80]} in the dimension {dim!r} is not understood.")
