"""The value of StableHLO on the way to a graph, which is in it only as far as it must be.

Constants, broadcasts that operations do by themselves, and the arithmetic of shapes are not.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Dim, Shape, is_static, numbers_of, product

# The greatest array of integers that is read as sizes.
_MAX_SIZES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of the program.

    Attributes:
        shape: the shape, as in the module.
        unbroadcast_shape: the shape of the elements that there are, which NumPy's broadcasting
            brings to `shape`. It may have fewer dimensions. A rule whose operands are expanded sees
            it equal to `shape`.
        name: the name of the value in the graph; empty for what is not in it.
        array: the elements, where they are known; its shape is `unbroadcast_shape`.
        sizes: the elements of integers that are sizes of dynamic dimensions, row by row.
    """

    dtype: np.dtype[Any]
    shape: Shape
    unbroadcast_shape: Shape
    name: str = ""
    array: Array | None = None
    sizes: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def is_expanded(self) -> bool:
        """Return whether nothing is left to broadcast."""
        return self.unbroadcast_shape == self.shape

    @property
    def is_float(self) -> bool:
        """Return whether its elements are floating-point numbers."""
        return self.dtype.kind not in "biu" and "int" not in self.dtype.name

    @property
    def is_unsigned(self) -> bool:
        """Return whether its elements are unsigned integers."""
        return self.dtype.name.startswith("uint")

    def broadcast_to(self, shape: Shape) -> Value:
        """Return the same tensor in another shape; it is broadcast where that is needed."""
        return dataclasses.replace(self, shape=shape)

    @property
    def scalar(self) -> Any:
        """The one element that it repeats, as a NumPy scalar; None where that is not known."""
        if self.array is None or self.array.size != 1:
            return None
        return self.array.reshape(())[()]


def constant_array(array: Array) -> Value:
    """Return the value of a constant, all of whose elements are stored."""
    return Value(array.dtype, array.shape, array.shape, array=array)


def of_array(array: Array) -> Value:
    """Return the value of a constant; elements that are all the same are stored once."""
    if array.size > 1 and (array == array.flat[0]).all() and not _is_signed_zero(array):
        return constant_array(array.reshape(-1)[:1].reshape(())).broadcast_to(array.shape)
    return constant_array(array)


def _is_signed_zero(array: Array) -> bool:
    return bool(array.flat[0] == 0) and array.dtype.kind not in "biu"


def of_size(dim: Dim) -> Value:
    """Return the value of one size, a scalar of int64."""
    return of_sizes((dim,), np.dtype(np.int64), ())


def of_sizes(sizes: tuple[Dim, ...], dtype: np.dtype[Any], shape: Shape) -> Value:
    """Return the value of integers that are sizes, given row by row."""
    if is_static(sizes):
        return constant_array(np.array(sizes, np.int64).astype(dtype).reshape(shape))
    assert product(shape) == len(sizes)
    return Value(dtype, shape, shape, sizes=sizes)


def contents_of(value: Value) -> tuple[Dim, ...] | None:
    """Return the elements of a scalar or vector of integers; None where they are not known."""
    if value.rank > 1 or value.is_float or not is_static(value.shape):
        return None
    shape = numbers_of(value.shape)
    if value.sizes is not None:
        return value.sizes if value.is_expanded else value.sizes * math.prod(shape)
    if value.array is None:
        return None
    if math.prod(shape) > _MAX_SIZES:
        return None
    return tuple(int(n) for n in np.broadcast_to(value.array, shape).reshape(-1))
