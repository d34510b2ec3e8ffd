"""Integer arithmetic of values that are sizes: what it gives is a size again, and no tensor.

With symbolic shapes a module computes the shapes of what it makes from those of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.graphs.values import Value, contents_of, of_array, of_sizes
from xla_call_module.size_polynomials import (
    ARITHMETIC,
    Dim,
    Iteration,
    Size,
    atoms_of,
    broadcast,
    compare,
    lower_bound,
)


def compute_sizes(name: str, operands: Sequence[Value]) -> Value | None:
    """The result of an operation of sizes; None where the model has to compute it."""
    compute = ARITHMETIC.get(name)
    pairs = _pairs(operands)
    if compute is None or pairs is None or (name not in _MODULAR and _may_wrap(operands, pairs)):
        return None
    computed = [compute(left, right) for left, right in pairs]
    dims = tuple(dim for dim in computed if dim is not None)
    if len(dims) < len(computed):
        return None
    return of_sizes(dims, operands[0].dtype, _shape(operands))


def compare_sizes(direction: str, operands: Sequence[Value]) -> Value | None:
    """Return whether one size is before another one, where that is known for all sizes."""
    pairs = _pairs(operands)
    if pairs is None or _may_wrap(operands, pairs):
        return None
    answers = [compare(direction, left, right) for left, right in pairs]
    if None in answers:
        return None
    shape = _shape(operands)
    return of_array(np.array(answers, bool).reshape([int(str(dim)) for dim in shape]))


def _pairs(operands: Sequence[Value]) -> list[tuple[Dim, Dim]] | None:
    if all(value.sizes is None for value in operands) or len(operands) != 2:
        return None
    left, right = map(contents_of, operands)
    if left is None or right is None:
        return None
    count = max(len(left), len(right))
    left, right = (dims * count if len(dims) == 1 else dims for dims in (left, right))
    return list(zip(left, right, strict=True))


def _may_wrap(operands: Sequence[Value], pairs: Sequence[tuple[Dim, Dim]]) -> bool:
    """Return whether an iteration number may be beyond its dtype, so that it wraps around."""
    return any(may_wrap(dim, operands[0].dtype) for pair in pairs for dim in pair)


def may_wrap(dim: Dim, dtype: np.dtype[Any]) -> bool:
    """Return whether a size may be beyond a dtype of integers.

    Sizes of arrays are never beyond a dtype of indices; what a loop makes of the number of its
    rounds may be.
    """
    if isinstance(dim, int):
        return False
    bounds = np.iinfo(dtype)
    least, greatest = lower_bound(dim), lower_bound(dim * -1)
    is_negative = least is None or least < bounds.min
    if not any(isinstance(atom, Iteration) for atom in atoms_of(dim)):
        is_small = dtype.itemsize < np.dtype(np.int32).itemsize
        return is_small or (bounds.min == 0 and is_negative)
    if is_negative:
        return True
    if greatest is not None:
        return -greatest > bounds.max
    return not is_index(dim)


def is_index(dim: Dim) -> bool:
    """Return whether a size counts along one dimension, for which a dtype of indices is enough."""
    return isinstance(dim, Size) and all(
        len(atoms) <= 1 and (not atoms or abs(coefficient) == 1) for atoms, coefficient in dim.terms
    )


def _shape(operands: Sequence[Value]) -> tuple[Dim, ...]:
    return broadcast([value.shape for value in operands])


# These give the same low bits of numbers that have the same low bits.
_MODULAR = frozenset({"add", "multiply", "subtract"})
