"""The abstract value: the place of the rows of a batch in a value of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from xla_call_module.size_polynomials import (
    Dim,
    Iteration,
    Size,
    Symbol,
    atoms_of,
    floordiv,
    of_atom,
)

__all__ = [
    "Batch",
    "BatchValue",
    "Elements",
    "Mixing",
    "Rows",
    "elements_of",
    "find_rows",
    "iteration_of",
    "join",
    "join_all",
    "quotient",
]

# Of arrays with more elements than that, or of a dimension that is longer, none are known.
_MAX_ELEMENTS = 256


@dataclass(frozen=True, slots=True)
class Mixing:
    """The reason why a value may be another one in a batch of other rows.

    Attributes:
        is_size: whether it depends on the number of rows, not on what is in them.
        text: the operation, where it comes from, and what it does, as a clause.
    """

    is_size: bool
    text: str

    @property
    def consequence(self) -> str:
        """Return the consequence for a result, as the rest of a sentence."""
        on = "the number of rows in the batch" if self.is_size else "the other rows of the batch"
        return f"depends on {on}, as far as its operations tell"


@dataclass(frozen=True, slots=True)
class Rows:
    """The place of the rows of a batch: a dimension of `outer * batch * inner` in this order.

    Attributes:
        axis: the dimension.
        outer: the number of batches that follow each other in it.
        inner: the number of its elements that each row has.
        is_constant: whether all rows are the same, whatever the batch.
    """

    axis: int
    outer: Dim = 1
    inner: Dim = 1
    is_constant: bool = False

    def at(self, axis: int) -> Rows:
        """The same in another dimension."""
        return dataclasses.replace(self, axis=axis)


@dataclass(frozen=True, slots=True)
class Elements:
    """The integers that a value has, as far as they are known.

    Attributes:
        shape: a size for each dimension of the value; 1 where all along it are the same.
        dims: the integers in row-major order; None for one that is not known.
    """

    shape: tuple[int, ...]
    dims: tuple[Dim | None, ...]

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The same as an array of objects."""
        array = np.empty(len(self.dims), object)
        array[:] = self.dims
        return array.reshape(self.shape)


def elements_of(array: np.ndarray[Any, Any]) -> Elements | None:
    """The elements of an array of objects; None where they are too many or none is known."""
    if array.size > _MAX_ELEMENTS or all(dim is None for dim in array.flat):
        return None
    return Elements(array.shape, tuple(array.flat))


@dataclass(frozen=True, slots=True)
class BatchValue:
    """One value of a module.

    Attributes:
        shape: the sizes, of which only that of the dimension with the rows depends on the batch's.
        rows: the place of the rows; None where the value is the same whatever the batch.
        elements: the known integers and truth values. Where the size of the batch is among them,
            they may only say the shape of something.
        mixing: the reason why it depends on the whole batch; nothing else is known then.
        iteration: the name of the loop over the rows, of whose iteration's row it is computed.
        origin: the loop over the rows, and the index of its carried value, that this value was at
            the beginning of the iteration, but for the row of the iteration.
    """

    shape: tuple[Dim, ...]
    rows: Rows | None = None
    elements: Elements | None = None
    mixing: Mixing | None = None
    iteration: str | None = None
    origin: tuple[str, int] | None = None

    @classmethod
    def mixed(cls, text: str, *, is_size: bool = False) -> BatchValue:
        """Return a value that depends on the whole batch, for a reason; see `Mixing`."""
        return cls((), mixing=Mixing(is_size, text))

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def dims(self) -> tuple[Dim | None, ...] | None:
        """The elements in row-major order; None where some are unknown."""
        if self.elements is None:
            return None
        if not all(isinstance(dim, int) for dim in self.shape):
            return None
        whole: tuple[Any, ...] = self.shape
        if int(np.prod(whole, dtype=np.int64)) > _MAX_ELEMENTS:
            return None
        return tuple(np.broadcast_to(self.elements.array, whole).flat)

    @property
    def scalar(self) -> Dim | None:
        """The one element that it has everywhere, where that is known."""
        known = self.elements
        return known.dims[0] if known is not None and len(known.dims) == 1 else None


@dataclass(frozen=True)
class Batch:
    """The size of a batch: a number, or what the first dimension is called."""

    size: Dim

    @cached_property
    def names(self) -> frozenset[str]:
        """The dimension variables in it."""
        return frozenset(a.name for a in atoms_of(self.size) if isinstance(a, Symbol))

    def is_in(self, dim: Dim | None) -> bool:
        """Return whether a size depends on that of the batch."""
        if dim is None or isinstance(dim, int) or not self.names:
            return False
        return any(isinstance(a, Symbol) and a.name in self.names for a in atoms_of(dim))

    def is_in_elements(self, value: BatchValue) -> bool:
        """Return whether an element of a value is the size of the batch, or depends on it."""
        return value.elements is not None and any(map(self.is_in, value.elements.dims))

    def factor(self, dim: Dim) -> Dim | None:
        """Return the factor by which a size is a multiple of the batch's; None where it is none."""
        factor = quotient(dim, self.size)
        return None if factor is None or self.is_in(factor) else factor

    @property
    def position(self) -> Dim:
        """The number of a row, which is known to be below the size."""
        return of_atom(Iteration("row", self.size))


def quotient(left: Dim, right: Dim) -> Dim | None:
    """The quotient of two sizes where it is one without a remainder."""
    if right == 0:
        return None
    rounded = floordiv(left, right)
    return rounded if rounded * right == left else None


def find_rows(
    batch: Batch, shape: Sequence[Dim], before: Dim, *, is_constant: bool = False
) -> Rows | None:
    """Return the place of rows in a shape that is filled in the order of its elements.

    The batch is repeated `before` times by all dimensions that vary more slowly than the rows.
    """
    done: Dim = 1
    for axis, dim in enumerate(shape):
        factor = batch.factor(dim)
        outer = None if factor is None else quotient(before, done)
        if factor is not None and outer is not None:
            inner = quotient(factor, outer)
            if inner is not None:
                return Rows(axis, outer, inner, is_constant)
        done = done * dim
    return None


def iteration_of(batch: Batch, start: Dim | None, rows: Rows) -> str | None:
    """The loop over the rows of which the number of a iteration is the start of a slice of rows."""
    if not isinstance(start, Size) or (rows.outer, rows.inner) != (1, 1):
        return None
    match start.terms:
        case (((Iteration(name, limit),), 1),) if name != "row" and limit == batch.size:
            return name
    return None


def join_all(batch: Batch, values: Sequence[BatchValue], where: str) -> BatchValue:
    """Return the abstract value that stands for one of several; see `join`."""
    return reduce(lambda left, right: join(batch, left, right, where), values)


def join(batch: Batch, left: BatchValue, right: BatchValue, where: str) -> BatchValue:
    """Return the abstract value that stands for one or the other; the left shape counts.

    The operation that chooses, `where`, is named by the reason if the result is mixed.
    """
    if left == right:
        return left
    if (known := left.mixing or right.mixing) is not None:
        return BatchValue((), mixing=known)
    different = any(
        a != b and (batch.is_in(a) or batch.is_in(b))
        for a, b in zip(left.shape, right.shape, strict=True)
    )
    iterations = {value.iteration for value in (left, right) if value.iteration}
    is_placed, rows = _join_rows(batch, left, right)
    if different or not is_placed or len(iterations) > 1 or (rows is not None and iterations):
        return BatchValue.mixed(f"{where} has rows of the batch in different places")
    elements = _join_elements(left, right)
    if elements != left.elements or elements != right.elements:
        lost = [value for value in (left, right) if value.elements != elements]
        if any(map(batch.is_in_elements, lost)):
            reason = f"{where} takes the size of the batch as a number"
            return BatchValue.mixed(reason, is_size=True)
    origin = left.origin if left.origin == right.origin else None
    iteration = next(iter(iterations), None)
    return BatchValue(left.shape, rows, elements, iteration=iteration, origin=origin)


def _join_rows(batch: Batch, left: BatchValue, right: BatchValue) -> tuple[bool, Rows | None]:
    """Return whether the rows are in one place, and that place."""
    one, other = left.rows, right.rows
    if one is None or other is None:
        # What is the same for all batches of one size may be of any place in them.
        place = one or other
        return place is None or not batch.names, place
    layouts = {(r.outer, r.inner) for r in (one, other) if not r.is_constant}
    if one.axis != other.axis or len(layouts) > 1:
        return False, None
    if not layouts:
        return True, Rows(one.axis, one.outer, one.inner, is_constant=True)
    ((outer, inner),) = layouts
    return True, Rows(one.axis, outer, inner)


def _join_elements(left: BatchValue, right: BatchValue) -> Elements | None:
    one, other = left.elements, right.elements
    if one is None or other is None or one.shape != other.shape:
        return None
    array = one.array
    for place, (a, b) in enumerate(zip(one.dims, other.dims, strict=True)):
        array.reshape(-1)[place] = a if a == b else None
    return elements_of(array)
