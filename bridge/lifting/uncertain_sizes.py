"""Arithmetic of sizes that passes through what depends on the sizes, such as the sign of t - 8.

JAX writes `floordiv` and `mod` of sizes as the truncated quotient and remainder, which are
corrected where signs differ and something is left. For a size that may be 0 or negative each step
alone is unknown while JAX traces, and the whole is a dimension again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import export

from bridge.core._jax import dimension_bounds
from bridge.lifting.known_values import (
    Dimension,
    LiftedValue,
    SizeArray,
    StructuredArray,
    of_dimensions,
)
from xla_call_module.dimensions import parse_size
from xla_call_module.size_polynomials import Dim, Function, Symbol, atoms_of
from xla_call_module.stablehlo.constant_evaluation import compute
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import tensor_type

Array = np.ndarray[Any, Any]

# Operations of each element that lead from such a value to the next one.
_INTEGERS = ("abs", "add", "compare", "convert", "divide", "maximum", "minimum", "negate",
             "remainder", "select", "sign", "subtract")  # fmt: skip
_FLAGS = ("and", "not", "or", "xor")
# Those that may follow after a quotient. Others would change at products of the constants.
_AFTER_QUOTIENT = ("add", "convert", "select", "subtract")
_FUNCTIONS = {
    "floordiv": np.floor_divide, "max": np.maximum, "min": np.minimum, "mod": np.remainder,
}  # fmt: skip
# The numbers of a variable that are tried at most.
_MAX_TRIED = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class UncertainSize(StructuredArray):
    """A scalar that follows from one dimension variable, by what depends on the number that it is.

    Attributes:
        traced: the scalar as JAX computes it.
        compute: the scalar for each number that the variable may be; None where there is none.
        sizes: the sizes that it is computed of, all of them of one variable.
        constants: the numbers that it is computed with.
        has_quotient: whether quotients are part of it.
        has_fraction: whether something is divided by a size.
    """

    traced: Any
    compute: Callable[[Array], Array | None]
    sizes: tuple[Dimension, ...] = ()
    constants: frozenset[int] = frozenset()
    has_quotient: bool = False
    has_fraction: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return ()

    def array(self) -> Any:
        """Return the scalar."""
        return self.traced

    def after(self, raw: Any, operands: Sequence[Any]) -> LiftedValue | None:
        """Return the result of a choice that is the same size for every number."""
        if raw.name != "stablehlo.select" or (whole := with_size(raw, operands, None)) is None:
            return None
        if (numbers := whole.numbers()) is None or (found := whole.compute(numbers)) is None:
            return None
        dtype = element_dtype(tensor_type(str(raw.results[0].type)).element)
        for choice in operands[1:]:
            source = None if isinstance(choice, UncertainSize) else _source(choice)
            if source is not None and _is_same(source.compute(numbers), found):
                return choice
        known = [*sorted(whole.constants), *whole.sizes]
        for size, divisor in itertools.product(known, known):
            if isinstance(divisor, int) and divisor < 1:
                continue
            pair = [_values(parse_size(_text(part)), numbers) for part in (size, divisor)]
            for function in (np.floor_divide, np.remainder):
                if (pair[1] > 0).all() and _is_same(function(*pair), found):
                    element = function(np.array(size, object), np.array(divisor, object))
                    return of_dimensions(np.asarray(element, object), dtype)
        return None

    def numbers(self) -> Array | None:
        """Return numbers that the variable may be, as many as tell two such functions apart.

        They change at sums of the constants, or products where a size is divided by a size, and go
        on as before after a multiple of the constants.
        """
        constants = [abs(number) for number in self.constants if number]
        reach = 4 * (8 + sum(constants) + math.lcm(*constants))
        if self.has_fraction:
            reach += 4 * max(constants, default=1) ** 2
        if reach > _MAX_TRIED:
            return None
        (name,) = {atom.name for atom in _atoms(self.sizes) if isinstance(atom, Symbol)}
        (variable,) = export.symbolic_shape(name, scope=self.sizes[0].scope)
        least, greatest = dimension_bounds(variable, most=1 << 31)
        return np.arange(least, min(least + reach, greatest) + 1)


def with_size(raw: Any, operands: Sequence[LiftedValue], traced: Any) -> UncertainSize | None:
    """Return the result of an operation with how it follows from a size; None if it does not."""
    if not any(isinstance(operand, (SizeArray, UncertainSize)) for operand in operands):
        return None
    name, type_ = raw.name.removeprefix("stablehlo."), tensor_type(str(raw.results[0].type))
    dtype = element_dtype(type_.element)
    is_listed = name in _INTEGERS or (name in _FLAGS and dtype.kind == "b")
    sources = [source for operand in operands if (source := _source(operand)) is not None]
    if type_.shape or dtype.kind not in "bi" or not is_listed or len(sources) < len(operands):
        return None
    has_quotient = any(source.has_quotient for source in sources)
    if has_quotient and name not in _AFTER_QUOTIENT:
        return None
    divides = name in ("divide", "remainder") and bool(sources[1].sizes)
    has_fraction = divides or any(source.has_fraction for source in sources)
    sizes = tuple(dict.fromkeys(size for source in sources for size in source.sizes))
    if len({atom.name for atom in _atoms(sizes) if isinstance(atom, Symbol)}) != 1:
        return None

    def of_numbers(numbers: Array) -> Array | None:
        values = [source.compute(numbers) for source in sources]
        if any(value is None for value in values):
            return None
        result = compute(raw, [value for value in values if value is not None])
        return None if result is None else result.astype(bool if dtype.kind == "b" else np.int64)

    constants = frozenset[int]().union(*(source.constants for source in sources))
    has_quotient = has_quotient or name == "divide"
    return UncertainSize(traced, of_numbers, sizes, constants, has_quotient, has_fraction)


def _source(operand: LiftedValue) -> UncertainSize | None:
    """Return what an operand is for each number of its variable; None if that is unknown."""
    if isinstance(operand, UncertainSize):
        return operand
    if isinstance(operand, np.ndarray) and operand.shape == () and operand.dtype.kind in "bi":
        number = operand.item()
        return UncertainSize(
            None,
            lambda numbers: np.full(numbers.shape, number),
            constants=frozenset([int(number)]),
        )
    if not isinstance(operand, SizeArray) or operand.shape != ():
        return None
    size = operand.elements.item()
    parsed = parse_size(_text(size))
    if not _is_linear(parsed):
        return None
    quotients = [a for a in _atoms((size,)) if isinstance(a, Function) and a.name == "floordiv"]
    return UncertainSize(
        None,
        lambda numbers: _values(parsed, numbers),
        (size,),
        frozenset(_constants(parsed)),
        bool(quotients),
    )


def _text(size: Dimension) -> int | str:
    return size if isinstance(size, int) else str(size)


def _atoms(sizes: Sequence[Dimension]) -> list[Any]:
    return [atom for size in sizes for atom in atoms_of(parse_size(_text(size)))]


def _is_linear(size: Dim) -> bool:
    """Return whether a size has neither products of sizes nor quotients by them."""
    if isinstance(size, int):
        return True
    return all(
        len(atoms) < 2
        and all(
            not isinstance(atom, Function)
            or (
                _is_linear(atom.left)
                and _is_linear(atom.right)
                and (isinstance(atom.right, int) or atom.name in ("max", "min"))
            )
            for atom in atoms
        )
        for atoms, _ in size.terms
    )


def _constants(size: Dim) -> list[int]:
    """Return the numbers in a size."""
    if isinstance(size, int):
        return [size]
    parts = [part for a in atoms_of(size) if isinstance(a, Function) for part in (a.left, a.right)]
    return [number for _, number in size.terms] + [n for part in parts for n in _constants(part)]


def _values(size: Dim, numbers: Array) -> Array:
    """Return the values of a size for numbers of its variable."""
    if isinstance(size, int):
        return np.full(numbers.shape, size)
    total = np.zeros(numbers.shape, np.int64)
    for atoms, factor in size.terms:
        product = np.full(numbers.shape, factor)
        for atom in atoms:
            product = product * (
                _FUNCTIONS[atom.name](_values(atom.left, numbers), _values(atom.right, numbers))
                if isinstance(atom, Function)
                else numbers
            )
        total = total + product
    return total


def _is_same(one: Array | None, other: Array) -> bool:
    return one is not None and bool((one == other).all())
