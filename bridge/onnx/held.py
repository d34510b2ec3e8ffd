"""Element types that the runtime lacks, and what holds their values instead.

ONNX has integers of 4 and of 2 bits, and some of the small floats, but ONNX Runtime computes with
none of them, and its Python interface neither takes nor returns them. So a tensor of these is one
of a wider dtype everywhere in a model, with the values that the element type has: integers are int8
or uint8, floats are float32. Each operation is computed in the wider dtype, and what it makes is
fitted (`bridge.onnx.fitting`) by the walker: the families of operations know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["HELD", "Held", "HeldFloat", "HeldInteger", "holder_of"]


@dataclass(frozen=True)
class HeldInteger:
    """An integer type of fewer than 8 bits.

    Attributes:
        name: as JAX calls it.
        mlir: as StableHLO writes it.
        bits: how many there are, the sign included.
    """

    name: str
    mlir: str
    bits: int

    @cached_property
    def own(self) -> np.dtype[Any]:
        """The dtype of ml_dtypes."""
        return np.dtype(getattr(ml_dtypes, self.name))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds it."""
        return np.dtype(np.uint8 if self.is_unsigned else np.int8)

    @property
    def is_unsigned(self) -> bool:
        """Whether it has no sign."""
        return self.name.startswith("u")

    @property
    def least(self) -> int:
        """The least value."""
        return 0 if self.is_unsigned else -(1 << (self.bits - 1))

    @property
    def greatest(self) -> int:
        """The greatest value."""
        return self.least + (1 << self.bits) - 1

    @property
    def mask(self) -> int:
        """All bits."""
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class HeldFloat:
    """A float type of at most 8 bits.

    Attributes:
        name: as JAX calls it.
        mlir: as StableHLO writes it.
        bits: how many there are, the sign included.
        fraction_bits: of them those of the fraction.
        least_exponent: the power of two of the smallest number that has all bits of the fraction.
    """

    name: str
    mlir: str
    bits: int
    fraction_bits: int
    least_exponent: int

    @cached_property
    def own(self) -> np.dtype[Any]:
        """The dtype of ml_dtypes."""
        return np.dtype(getattr(ml_dtypes, self.name))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds it."""
        return np.dtype(np.float32)

    @cached_property
    def values(self) -> np.ndarray[Any, Any]:
        """The value of each pattern of its bits."""
        return np.arange(1 << self.bits).astype(np.uint8).view(self.own).astype(np.float32)


Held = HeldInteger | HeldFloat

_ALL: tuple[Held, ...] = (
    HeldInteger("int4", "i4", 4),
    HeldInteger("int2", "i2", 2),
    HeldInteger("uint4", "ui4", 4),
    HeldInteger("uint2", "ui2", 2),
)
# By what StableHLO calls it; an older ml_dtypes has not all of them.
HELD: Mapping[str, Held] = {held.mlir: held for held in _ALL if hasattr(ml_dtypes, held.name)}
_BY_NAME: Mapping[str, Held] = {held.name: held for held in HELD.values()}


def holder_of(dtype: Any) -> np.dtype[Any] | None:
    """The dtype that holds elements of a dtype; None for those that hold themselves."""
    held = _BY_NAME.get(getattr(dtype, "name", ""))
    return None if held is None else held.dtype
