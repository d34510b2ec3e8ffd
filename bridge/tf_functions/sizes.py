"""Numbers for symbolic dimensions, and the sizes that follow from them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax import export

from xla_call_module.dimensions import evaluate, evaluate_shape, symbols

__all__ = ["Size", "SizeSamples", "is_static", "scope_of"]

# Sizes at which functions are traced: whole numbers of what shapes are usually divided by, and one
# odd size.
_BASE, _STEP = 24, 48
# A flattened tensor has the product of as many symbols at most.
_DEGREE = 3


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of terms with whole coefficients.

    Attributes:
        constant: what does not depend on symbols.
        terms: texts of expressions of the symbols, with their coefficients.
    """

    constant: int
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class SizeSamples:
    """Several numbers for each symbol in the shapes of arguments.

    Attributes:
        specs: the arguments.
        declared: expressions that sizes are known to be, besides those that are linear.
    """

    specs: tuple[jax.ShapeDtypeStruct, ...]
    declared: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The symbols."""
        texts = [_texts(spec) for spec in self.specs]
        return tuple(sorted({name for shape in texts for dim in shape for name in symbols(dim)}))

    @cached_property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """One set of numbers, the same with each of them changed by itself, and an odd one."""
        base = {name: _BASE + index for index, name in enumerate(self.names)}
        moved = [{**base, name: base[name] + _STEP} for name in self.names]
        return (base, *moved, {name: 3 * size + 1 for name, size in base.items()})

    def specs_at(self, sizes: Mapping[str, int]) -> list[jax.ShapeDtypeStruct]:
        """The arguments, with numbers for the symbols."""
        return [
            jax.ShapeDtypeStruct(evaluate_shape(_texts(spec), sizes), spec.dtype)
            for spec in self.specs
        ]

    def fit(self, values: Sequence[int]) -> Size | None:
        """What has these values at the sizes: a linear one or a multiple of a product; or None."""
        if len(set(values)) == 1:
            return Size(values[0])
        return self._fit_linear(values) or self._fit_multiple(values)

    def _fit_linear(self, values: Sequence[int]) -> Size | None:
        base, *_, check = self.sizes
        rises = [value - values[0] for value in values[1:-1]]
        if any(rise % _STEP for rise in rises):
            return None
        slopes = {name: rise // _STEP for name, rise in zip(self.names, rises, strict=True)}
        constant = values[0] - sum(slope * base[name] for name, slope in slopes.items())
        if constant + sum(slope * check[name] for name, slope in slopes.items()) != values[-1]:
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
        degrees = range(2, _DEGREE + 1)
        return tuple(
            "*".join(names)
            for degree in degrees
            for names in itertools.combinations_with_replacement(self.names, degree)
        )

    def dimension(self, term: str) -> Any:
        """A term as a dimension of JAX."""
        (found,) = export.symbolic_shape(term, scope=scope_of(self.specs))
        return found

    def to_dimension(self, size: Size) -> Any:
        """A size as a dimension of JAX."""
        return sum((n * self.dimension(term) for term, n in size.terms), size.constant)


def _texts(spec: jax.ShapeDtypeStruct) -> tuple[int | str, ...]:
    return tuple(dim if isinstance(dim, int) else str(dim) for dim in spec.shape)


def is_static(spec: jax.ShapeDtypeStruct) -> bool:
    """Whether no dimension is symbolic."""
    return all(isinstance(dim, int) for dim in spec.shape)


def scope_of(specs: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """Where the symbols of the shapes are from; None where there are none."""
    dims = (dim for spec in specs for dim in spec.shape if not isinstance(dim, int))
    return next((dim.scope for dim in dims), None)
