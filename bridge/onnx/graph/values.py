"""What a StableHLO value is on the way to ONNX.

Most of what a module computes is needed less than it seems: constants, broadcasts that ONNX does by
itself, and the arithmetic of shapes. So a value is in the graph only in as far as it must be.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core.size_polynomials import Dim, Shape, is_static, numbers_of, product
from xla_call_module.dtypes import Array

__all__ = ["Value", "contents_of", "of_array", "of_sizes"]


# An array of integers that is no larger is read as the sizes of something.
_MOST_SIZES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of the program.

    Attributes:
        dtype: of its elements, as in the module.
        shape: as in the module.
        held: the shape of what there is; NumPy's broadcasting makes `shape` of it. It may have
            fewer dimensions. Where a rule does not ask for it, `held` and `shape` are equal.
        name: of the value in the graph; empty for what is not in it.
        array: what it is, where that is known; its shape is `held`.
        sizes: for integers the sizes that `held` is made of, row by row, where only a run knows
            their numbers.
    """

    dtype: np.dtype[Any]
    shape: Shape
    held: Shape
    name: str = ""
    array: Array | None = None
    sizes: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to broadcast."""
        return self.held == self.shape

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype.kind not in "biu" and "int" not in self.dtype.name

    @property
    def is_unsigned(self) -> bool:
        """Whether its elements are unsigned integers."""
        return self.dtype.name.startswith("uint")

    def seen_as(self, shape: Shape) -> Value:
        """The same tensor, broadcast to another shape when somebody needs that."""
        return dataclasses.replace(self, shape=shape)

    @property
    def scalar(self) -> Any:
        """The one element that it repeats, as a NumPy scalar; None where that is not known."""
        if self.array is None or self.array.size != 1:
            return None
        return self.array.reshape(())[()]


def of_array(array: Array) -> Value:
    """The value of a constant; elements that are all the same are held once."""
    shape = array.shape
    if array.size > 1 and (array == array.flat[0]).all() and not _is_signed_zero(array):
        array = array.reshape(-1)[:1].reshape(())
    return Value(array.dtype, shape, array.shape, array=array)


def _is_signed_zero(array: Array) -> bool:
    return bool(array.flat[0] == 0) and array.dtype.kind not in "biu"


def of_sizes(sizes: tuple[Dim, ...], dtype: np.dtype[Any], shape: Shape) -> Value:
    """The value of sizes, which are given row by row."""
    if is_static(sizes):
        return Value(
            dtype, shape, shape, array=np.array(sizes, np.int64).astype(dtype).reshape(shape)
        )
    assert product(shape) == len(sizes)
    return Value(dtype, shape, shape, sizes=sizes)


def contents_of(value: Value) -> tuple[Dim, ...] | None:
    """The sizes that a scalar or vector of integers is made of; None where they are not known."""
    if value.rank > 1 or value.is_float or not is_static(value.shape):
        return None
    shape = numbers_of(value.shape)
    if value.sizes is not None:
        return value.sizes if value.is_whole else value.sizes * math.prod(shape)
    if value.array is None:
        return None
    if math.prod(shape) > _MOST_SIZES:
        return None
    return tuple(int(n) for n in np.broadcast_to(value.array, shape).reshape(-1))
