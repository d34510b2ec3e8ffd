"""The arrays of the cases, by kind: plain, edges of the dtype, and special values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
ROWS = 3
_FINITE = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.75, -7.25, 1e-3, -1e-3, 20.0, -20.0,
           100.0, -100.0]  # fmt: skip
_SPECIAL = [np.inf, -np.inf, np.nan]
_PARTS = [0.0, -0.0, 1.5, -2.25, 0.5, -0.75]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name."""
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True, slots=True)
class Operand:
    """One array that a case takes.

    Attributes:
        shape: its shape.
        low, high: between which its plain values are.
        dtype: its own dtype, or None for that of the case.
        rows: whether its first dimension is a number of rows, which may be any.
        extreme: whether it has edges and special values, too.
        values: makes its values, whatever the kind.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.6
    dtype: str | None = None
    rows: bool = False
    extreme: bool = True
    values: Callable[[], Any] | None = None

    def of(self, dtype: str) -> np.dtype[Any]:
        """Return its dtype in a case of a dtype."""
        return numpy_dtype(self.dtype or dtype)

    def sized(self, count: int | None) -> tuple[int, ...]:
        """Return its shape with a number of rows."""
        return self.shape if count is None or not self.rows else (count, *self.shape[1:])


def rows(*shape: int, low: float = -2.0, high: float = 2.6, **options: Any) -> Operand:
    """Return an operand whose first dimension is a number of rows."""
    return Operand((ROWS, *shape), low, high, rows=True, **options)


def integers(*shape: int, low: int = 0, high: int = 3, **options: Any) -> Operand:
    """Return an operand of small int32 numbers, such as indices."""
    options = {"dtype": "int32", "extreme": False, **options}
    return Operand(shape, low, high, **options)


def fixed(values: Any, dtype: str | None = None) -> Operand:
    """Return an operand of certain values."""
    array = np.asarray(values)
    return Operand(array.shape, dtype=dtype, extreme=False, values=lambda: array)


def made(make: Callable[[], Any], *shape: int, **options: Any) -> Operand:
    """Return an operand whose values a function makes."""
    return Operand(shape, extreme=False, values=make, **options)


def edges(dtype: str, *, special: bool = True, bounds: bool = True) -> Array:
    """Return the numbers of a dtype at which operations differ.

    Args:
        dtype: the dtype.
        special: whether infinities and NaN are among them.
        bounds: whether the greatest floats and the least normal one are.
    """
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True])
    if "complex" in dtype:
        parts = _PARTS + ([np.inf, np.nan] if special else [])
        return np.array([complex(a, b) for a, b in itertools.product(parts, parts)], kind)
    if "int" in dtype:
        bounds = np.iinfo(kind)
        numbers = [0, 1, 2, 3, 5, 7, 63, 100, bounds.max - 1, bounds.max]
        numbers += [2**31, 2**32 - 1, 2**32] if bounds.bits == 64 else []
        numbers += [-1, -2, -3, -7, -100, bounds.min, bounds.min + 1] if bounds.min < 0 else []
        return np.array(numbers, kind)
    info = ml_dtypes.finfo(kind)
    bounds_of = [float(info.max), -float(info.max), float(info.smallest_normal)]
    return np.array(
        [*_FINITE, *(bounds_of if bounds else []), *(_SPECIAL if special else [])]
    ).astype(kind)


def _spread(operand: Operand, shape: Sequence[int], dtype: str, start: int) -> Array:
    """Return evenly spread values in an irregular order, none of them at a bound."""
    kind = operand.of(dtype)
    if operand.values is not None:
        with np.errstate(over="ignore"):  # of numbers that are infinities in few bits
            values = np.broadcast_to(np.asarray(operand.values()), operand.shape).astype(kind)
        return np.resize(values, shape) if operand.rows else values
    size = math.prod(shape)
    order = (np.arange(size) * 7919 + 3 + start) % max(size, 1)
    low = max(operand.low, 0) if kind.kind == "u" else operand.low
    if kind.kind == "b":
        return (order % 2 == 0).reshape(shape)
    if kind.kind in "iu":
        steps = np.floor(low + (operand.high - low) * (order + 0.5) / max(size, 1))
        return steps.astype(np.int64).astype(kind).reshape(shape)
    values = low + (operand.high - low) * (order + 0.5) / max(size, 1)
    if kind.kind == "c":
        values = values + 1j * np.roll(values, 1)
    return values.astype(kind).reshape(shape)


def elements(
    operands: Sequence[Operand], dtype: str, count: int | None = None, *, few: bool = False
) -> list[Array]:
    """Return vectors of plain values, then of all combinations of edges.

    Args:
        operands: what they are for.
        dtype: that of the case.
        count: how many elements there are; by default all.
        few: whether there are fewer edges, for what takes long of each.
    """
    plain = [_spread(one, (12,), dtype, 5 * place) for place, one in enumerate(operands)]
    chosen = [
        _few(edges(one.dtype or dtype, bounds=len(operands) == 1), len(operands) + few)
        if one.extreme
        else plain[place][:3]
        for place, one in enumerate(operands)
    ]
    combined = list(zip(*itertools.product(*chosen), strict=True))
    vectors = [
        np.concatenate([each, np.array(more, each.dtype)])
        for each, more in zip(plain, combined, strict=True)
    ]
    return [vector if count is None else np.resize(vector, count) for vector in vectors]


def _few(values: Array, operands: int) -> Array:
    """Return fewer edges where there are many combinations."""
    most = {1: 99, 2: 24, 3: 6}.get(operands, 4)
    if len(values) <= most:
        return values
    if most <= 6 and values.dtype.kind not in "biuc":
        return np.array([0.0, -2.5, np.inf, np.nan, 1.0, 100.0][:most]).astype(values.dtype)
    return values[:: -(-len(values) // most)]


def structured(operand: Operand, dtype: str, kind: str, count: int | None, start: int) -> Array:
    """Return an array of a kind, `plain`, `edges` or `special`, with a number of rows."""
    shape = operand.sized(count)
    array = _spread(operand, shape, dtype, start)
    if kind == "plain" or not operand.extreme or array.dtype.kind == "b":
        return array
    name = operand.dtype or dtype
    if kind == "edges":
        numbers = np.roll(edges(name, special=False, bounds=False), -start)
        return np.resize(numbers, shape).astype(array.dtype)
    if array.dtype.kind in "iu" or not array.size:
        return array
    flat = array.reshape(-1).copy()
    values = [np.nan, np.inf, -np.inf] if array.dtype.kind != "c" else [complex(np.nan, 1)]
    step = max(array.size // ROWS, 1)
    for place, value in enumerate(values):
        flat[(place * step + start) % array.size] = value
    return flat.reshape(shape)
