"""Element types that the runtime lacks, and what holds their values instead.

ONNX has integers of 4 and of 2 bits, and some of the small floats, but ONNX Runtime computes with
none of them, and its Python interface neither takes nor returns them. So a tensor of these is one
of a wider dtype everywhere in a model, with the values that the element type has: integers are int8
or uint8, floats are float32. Each operation is computed in the wider dtype, and the walker converts
its results to values of the element type (`bridge.onnx.arithmetic.narrow_operations`). Sums and
products of matrices are converted once, at their end; XLA rounds some sums of floats on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.dtypes import Array

__all__ = ["HELD", "Held", "HeldFloat", "HeldInteger", "holder_of"]


@dataclass(frozen=True)
class _ElementType:
    """What every element type has.

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
        own: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return own

    @property
    def mask(self) -> int:
        """All bits, as a number."""
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class HeldInteger(_ElementType):
    """An integer type of fewer than 8 bits."""

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


@dataclass(frozen=True)
class HeldFloat(_ElementType):
    """A float type of at most 8 bits; all about its values is what ml_dtypes says.

    Attributes:
        fraction_bits: how many of the bits are those of the fraction.
        computes: whether XLA computes with it, and not only converts it.
    """

    fraction_bits: int
    computes: bool = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds it."""
        return np.dtype(np.float32)

    @cached_property
    def values(self) -> Array:
        """The value of each pattern of its bits, in float32."""
        return np.arange(1 << self.bits).astype(np.uint8).view(self.own).astype(np.float32)

    @cached_property
    def ladder(self) -> Array:
        """The values without a sign, from the least on, each at the number of its bits; no NaN."""
        unsigned = self.values[: len(self.values) // 2] if self.is_signed else self.values
        return unsigned[~np.isnan(unsigned)]

    @cached_property
    def is_signed(self) -> bool:
        """Whether it has negative numbers."""
        return bool((self.values < 0).any())

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether there are two zeros."""
        return bool(np.signbit(self.values[self.values == 0]).any())

    @property
    def least(self) -> float:
        """The least number above 0."""
        return float(self.ladder[self.ladder > 0][0])

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        return float(self.ladder[np.isfinite(self.ladder)][-1])

    @cached_property
    def beyond(self) -> float:
        """What a number above the greatest becomes: infinity, NaN, or the greatest."""
        return self._converted(np.inf)

    @cached_property
    def of_nan(self) -> float:
        """What NaN becomes, which not all of them have."""
        return self._converted(np.nan)

    @cached_property
    def bits_of_nan(self) -> int | None:
        """The bits of NaN, or of what it becomes; None for a type with several of them."""
        if np.isnan(self.values).sum() > 1:
            return None
        return int(np.float32(np.nan).astype(self.own).view(np.uint8))

    def _converted(self, number: float) -> float:
        return float(np.float32(number).astype(self.own).astype(np.float32))


Held = HeldInteger | HeldFloat

_ALL: tuple[Held, ...] = (
    HeldInteger("int4", "i4", 4),
    HeldInteger("int2", "i2", 2),
    HeldInteger("uint4", "ui4", 4),
    HeldInteger("uint2", "ui2", 2),
    HeldFloat("float8_e4m3", "f8E4M3", 8, 3),
    HeldFloat("float8_e4m3fnuz", "f8E4M3FNUZ", 8, 3),
    HeldFloat("float8_e4m3b11fnuz", "f8E4M3B11FNUZ", 8, 3),
    HeldFloat("float8_e5m2fnuz", "f8E5M2FNUZ", 8, 2),
    HeldFloat("float8_e3m4", "f8E3M4", 8, 4),
    HeldFloat("float8_e8m0fnu", "f8E8M0FNU", 8, 0, computes=False),
    HeldFloat("float6_e2m3fn", "f6E2M3FN", 6, 3, computes=False),
    HeldFloat("float6_e3m2fn", "f6E3M2FN", 6, 2, computes=False),
    HeldFloat("float4_e2m1fn", "f4E2M1FN", 4, 1),
)
# By what StableHLO calls it; an older ml_dtypes has not all of them.
HELD: Mapping[str, Held] = {held.mlir: held for held in _ALL if hasattr(ml_dtypes, held.name)}
_BY_NAME: Mapping[str, Held] = {held.name: held for held in HELD.values()}


def holder_of(dtype: Any) -> np.dtype[Any] | None:
    """The dtype that holds elements of a dtype; None for those that hold themselves."""
    held = _BY_NAME.get(getattr(dtype, "name", ""))
    return None if held is None else held.dtype
