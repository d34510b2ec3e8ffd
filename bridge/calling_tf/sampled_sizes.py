"""Sizes for symbolic dimensions, at which TensorFlow traces a function."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import tensorflow as tf
from jax import export

from bridge.calling_tf.concrete_functions import FlatFunction, TracedFunction, trace
from bridge.calling_tf.graph_nodes import nodes_of
from bridge.core._jax import dimension_bounds
from xla_call_module.dimensions import evaluate, evaluate_shape, symbols
from xla_call_module.errors import InteropError, StructureError, quote

__all__ = [
    "Size",
    "SizeSamples",
    "is_static",
    "scope_of",
    "sizes_text",
    "trace_at",
    "trace_at_sizes",
]

# Sizes at which functions are traced: whole numbers of what shapes are usually divided by.
_BASE, _STEP = 24, 48
# Odd sizes at which what was found is checked: one below those, or the first that a function takes,
# and one above what a function is likely to compare a size with.
_SMALL = (3, 5, 7, 9, 13, 17, 73)
_LARGE = 301
# Where the bounds of a symbol are looked for.
_MAX_BOUND = 1 << 20
_INDICES = frozenset({tf.int32.as_datatype_enum, tf.int64.as_datatype_enum})
# A constant with more numbers is no size, and greater ones are not compared with one.
_MAX_INDICES = 8
_MAX_COMPARED = 4096
# A flattened tensor has the product of as many symbols at most.
_MAX_DEGREE = 3


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of terms with whole coefficients.

    Attributes:
        constant: the term that does not depend on symbols.
        terms: the texts of expressions of the symbols, with their coefficients.
    """

    constant: int
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class SizeSamples:
    """Several numbers for each symbol in the shapes of arguments.

    Attributes:
        specs: the shapes and dtypes of the arguments.
        declared: expressions that sizes are known to be, besides those that are linear.
        checks: sets of numbers at which what was found is checked.
    """

    specs: tuple[jax.ShapeDtypeStruct, ...]
    declared: tuple[str, ...] = ()
    checks: tuple[Mapping[str, int], ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The symbols."""
        texts = [_texts(spec) for spec in self.specs]
        return tuple(sorted({name for shape in texts for dim in shape for name in symbols(dim)}))

    @cached_property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """One set of numbers, the same with each of them changed by itself, and the checks."""
        base = {name: _BASE + index for index, name in enumerate(self.names)}
        moved = [{**base, name: base[name] + _STEP} for name in self.names]
        return (base, *moved, *self.checks)

    def small(self, taken: Container[int]) -> list[Mapping[str, int]]:
        """Return sets of small numbers, or of the least that the symbols may have.

        Those come last in which a number is a size that there is besides, since TensorFlow compiles
        otherwise where sizes happen to be the same.
        """
        sets = self._distinct([self._near(size) for size in _SMALL])
        return sorted(sets, key=lambda sizes: any(size in taken for size in sizes.values()))

    @property
    def ones(self) -> Mapping[str, int] | None:
        """Each symbol as 1; None where not all may be."""
        if any(least > 1 for least, _ in self._bounds.values()):
            return None
        return dict.fromkeys(self.names, 1)

    def large(self, greatest: int) -> list[Mapping[str, int]]:
        """Return sets of numbers above a number, or of the greatest that the symbols may have."""
        return self._distinct([self._near(max(greatest + 2, _LARGE)), self._near(_LARGE)])

    def _distinct(self, sets: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
        return [sizes for index, sizes in enumerate(sets) if sizes not in sets[:index]]

    def _near(self, size: int) -> Mapping[str, int]:
        """Return a number for each symbol that its constraints allow, all different if they can."""
        wanted = ((name, size + 2 * index) for index, name in enumerate(self.names))
        return {
            name: min(max(number, self._bounds[name][0]), self._bounds[name][1])
            for name, number in wanted
        }

    @cached_property
    def _bounds(self) -> Mapping[str, tuple[int, int]]:
        """The least and the greatest number of each symbol."""
        return {
            name: dimension_bounds(self.dimension(name), most=_MAX_BOUND) for name in self.names
        }

    def specs_at(self, sizes: Mapping[str, int]) -> list[jax.ShapeDtypeStruct]:
        """Return the specs of the arguments, with numbers for the symbols."""
        return [
            jax.ShapeDtypeStruct(evaluate_shape(_texts(spec), sizes), spec.dtype)
            for spec in self.specs
        ]

    def fit(self, values: Sequence[int]) -> Size | None:
        """Return the size that has these values, linear or a multiple of a product; or None."""
        if len(set(values)) == 1:
            return Size(values[0])
        return self._fit_linear(values) or self._fit_multiple(values)

    def _fit_linear(self, values: Sequence[int]) -> Size | None:
        base, *others = self.sizes
        count = len(self.names)
        rises = [value - values[0] for value in values[1 : 1 + count]]
        if any(rise % _STEP for rise in rises):
            return None
        slopes = {name: rise // _STEP for name, rise in zip(self.names, rises, strict=True)}
        constant = values[0] - sum(slope * base[name] for name, slope in slopes.items())
        for check, value in zip(others[count:], values[1 + count :], strict=True):
            if constant + sum(slope * check[name] for name, slope in slopes.items()) != value:
                return None
        return Size(constant, tuple((name, slope) for name, slope in slopes.items() if slope))

    def _fit_multiple(self, values: Sequence[int]) -> Size | None:
        for term in (*self.declared, *self.products):
            sizes = [evaluate(term, at) or 0 for at in self.sizes]
            if all(sizes) and not values[0] % sizes[0]:
                factor = values[0] // sizes[0]
                if [factor * size for size in sizes] == list(values):
                    return Size(0, ((term, factor),))
        return None

    @cached_property
    def products(self) -> tuple[str, ...]:
        """Products of symbols, as those that flatten a tensor."""
        degrees = range(2, _MAX_DEGREE + 1)
        return tuple(
            "*".join(names)
            for degree in degrees
            for names in itertools.combinations_with_replacement(self.names, degree)
        )

    def dimension(self, term: str) -> Any:
        """Return a term as a dimension of JAX."""
        (dimension,) = export.symbolic_shape(term, scope=scope_of(self.specs))
        return dimension

    def to_dimension(self, size: Size) -> Any:
        """Return a size as a dimension of JAX."""
        return sum((n * self.dimension(term) for term, n in size.terms), size.constant)


def _texts(spec: jax.ShapeDtypeStruct) -> tuple[int | str, ...]:
    return tuple(dim if isinstance(dim, int) else str(dim) for dim in spec.shape)


def is_static(spec: jax.ShapeDtypeStruct) -> bool:
    """Return whether no dimension is symbolic."""
    return all(isinstance(dim, int) for dim in spec.shape)


def scope_of(specs: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """Return the scope of the symbols in shapes; None where there are none."""
    dims = (dim for spec in specs for dim in spec.shape if not isinstance(dim, int))
    return next((dim.scope for dim in dims), None)


def trace_at_sizes(
    flat: FlatFunction, samples: SizeSamples, *, name: str, compiled: bool = True
) -> tuple[SizeSamples, list[TracedFunction]]:
    """Return the function, traced with numbers for the symbols, and those numbers.

    These are one set, each of them changed by itself, and two at which what was found is checked: a
    small set, and one with larger numbers than the function has constants, with which it may
    compare a size. A large one that TensorFlow refuses is left out.

    Raises:
        StructureError: TensorFlow refuses other sizes.
    """
    traces = [
        trace_at(flat, samples, sizes, name=name, compiled=compiled) for sizes in samples.sizes
    ]
    checks: list[Mapping[str, int]] = []
    greatest, fixed = _greatest_constant(traces[0]), _fixed_sizes(traces[0])
    groups = (samples.small(fixed), samples.large(greatest))
    for group, is_needed in zip(groups, (True, False), strict=True):
        for sizes in group:
            try:
                traces.append(trace_at(flat, samples, sizes, name=name, compiled=compiled))
            except StructureError:
                if is_needed and sizes is group[-1]:
                    raise
                continue
            checks.append(sizes)
            break
    return dataclasses.replace(samples, checks=tuple(checks)), traces


def _greatest_constant(traced: TracedFunction) -> int:
    """Return the greatest integer in a function that a size may be compared with."""
    constants = [
        tf.make_ndarray(node.attr["value"].tensor).ravel().tolist()
        for node in nodes_of(traced.concrete)
        if node.op == "Const"
        and node.attr["dtype"].type in _INDICES
        and math.prod(_shape_of_constant(node)) <= _MAX_INDICES
    ]
    numbers = (number for constant in constants for number in constant)
    return max((number for number in numbers if number <= _MAX_COMPARED), default=0)


def _fixed_sizes(traced: TracedFunction) -> frozenset[int]:
    """Return the sizes in a function, some of which are the same whatever the symbols are."""
    outputs = (out for op in traced.concrete.graph.get_operations() for out in op.outputs)
    shapes = [*(out.shape for out in outputs), *(captured.shape for captured in traced.captures)]
    sizes = {size for shape in shapes if shape.rank is not None for size in shape if size}
    constants = (node for node in nodes_of(traced.concrete) if node.op == "Const")
    return frozenset(sizes.union(*map(_shape_of_constant, constants)))


def _shape_of_constant(node: Any) -> list[int]:
    return [dim.size for dim in node.attr["value"].tensor.tensor_shape.dim]


def trace_at(
    flat: FlatFunction,
    samples: SizeSamples,
    sizes: Mapping[str, int],
    *,
    name: str,
    compiled: bool = True,
) -> TracedFunction:
    """Return the function, traced with numbers for the symbols.

    Raises:
        StructureError: TensorFlow refuses these sizes.
    """
    try:
        return trace(flat, samples.specs_at(sizes), name=name, compiled=compiled)
    except ValueError as error:
        if isinstance(error, InteropError):
            raise
        raise StructureError(
            f"{name} cannot be traced with {sizes_text(sizes)}: {quote(error)}. To do: have it "
            "take arguments of every size, or write a dimension that must be divisible as in '2*b'."
        ) from error


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes as text for messages, such as `b=24, n=25`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
