"""The narrow types, of which most runtimes compute nothing, and their storage dtypes.

ONNX has integers of 4 and of 2 bits, and some of the small floats, but ONNX Runtime computes with
none of them, and its Python interface neither takes nor returns them. So a tensor of these is one
of a wider dtype everywhere in a model, with the values that the narrow type has: integers are int8
or uint8, floats are float32 (`bridge.core_ops.decompositions.narrow_types`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.dtypes import Array


@dataclass(frozen=True)
class _ElementType:
    """The part that all narrow types have.

    Attributes:
        mlir: the name that StableHLO has for it.
        bits: the number of bits, the sign included.
    """

    name: str
    mlir: str
    bits: int

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of ml_dtypes."""
        numpy_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
        return numpy_dtype

    @property
    def mask(self) -> int:
        """The number all of whose bits are set."""
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class NarrowInteger(_ElementType):
    """An integer type of fewer than 8 bits."""

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype that tensors of it have in a model."""
        return np.dtype(np.uint8 if self.is_unsigned else np.int8)

    @property
    def is_unsigned(self) -> bool:
        """Return whether it has no sign."""
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
class NarrowFloat(_ElementType):
    """A float type of at most 8 bits, whose values are those of ml_dtypes.

    Attributes:
        has_arithmetic: whether XLA computes with it, and does not only convert it.
    """

    fraction_bits: int
    has_arithmetic: bool = True

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype that tensors of it have in a model."""
        return np.dtype(np.float32)

    @cached_property
    def values(self) -> Array:
        """The value of each pattern of its bits, in float32."""
        return np.arange(1 << self.bits).astype(np.uint8).view(self.numpy_dtype).astype(np.float32)

    @cached_property
    def magnitudes(self) -> Array:
        """The values without a sign, from the least on, each at the number of its bits; no NaN."""
        unsigned = self.values[: len(self.values) // 2] if self.is_signed else self.values
        return unsigned[~np.isnan(unsigned)]

    @cached_property
    def is_signed(self) -> bool:
        """Return whether it has negative numbers."""
        return bool((self.values < 0).any())

    @cached_property
    def has_negative_zero(self) -> bool:
        """Return whether there are two zeros."""
        return bool(np.signbit(self.values[self.values == 0]).any())

    @property
    def least(self) -> float:
        """The least number above 0."""
        return float(self.magnitudes[self.magnitudes > 0][0])

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        return float(self.magnitudes[np.isfinite(self.magnitudes)][-1])

    @cached_property
    def overflow(self) -> float:
        """The value that a greater number becomes: infinity, NaN, or the greatest one."""
        return self._converted(np.inf)

    @cached_property
    def converted_nan(self) -> float:
        """The value that NaN becomes, which not all of them have."""
        return self._converted(np.nan)

    @cached_property
    def bits_of_nan(self) -> int | None:
        """The bits of NaN, or of what it becomes; None for a type with several of them."""
        if np.isnan(self.values).sum() > 1:
            return None
        return int(np.float32(np.nan).astype(self.numpy_dtype).view(np.uint8))

    def _converted(self, number: float) -> float:
        return float(np.float32(number).astype(self.numpy_dtype).astype(np.float32))


NarrowType = NarrowInteger | NarrowFloat

_ALL: tuple[NarrowType, ...] = (
    NarrowInteger("int4", "i4", 4),
    NarrowInteger("int2", "i2", 2),
    NarrowInteger("uint4", "ui4", 4),
    NarrowInteger("uint2", "ui2", 2),
    NarrowFloat("float8_e4m3", "f8E4M3", 8, 3),
    NarrowFloat("float8_e4m3fnuz", "f8E4M3FNUZ", 8, 3),
    NarrowFloat("float8_e4m3b11fnuz", "f8E4M3B11FNUZ", 8, 3),
    NarrowFloat("float8_e5m2fnuz", "f8E5M2FNUZ", 8, 2),
    NarrowFloat("float8_e3m4", "f8E3M4", 8, 4),
    NarrowFloat("float8_e8m0fnu", "f8E8M0FNU", 8, 0, has_arithmetic=False),
    NarrowFloat("float6_e2m3fn", "f6E2M3FN", 6, 3, has_arithmetic=False),
    NarrowFloat("float6_e3m2fn", "f6E3M2FN", 6, 2, has_arithmetic=False),
    NarrowFloat("float4_e2m1fn", "f4E2M1FN", 4, 1),
)
# By what StableHLO calls it; an older ml_dtypes has not all of them.
NARROW_TYPES: Mapping[str, NarrowType] = {
    narrow.mlir: narrow for narrow in _ALL if hasattr(ml_dtypes, narrow.name)
}
_BY_NAME: Mapping[str, NarrowType] = {narrow.name: narrow for narrow in NARROW_TYPES.values()}


def storage_dtype_of(dtype: Any) -> np.dtype[Any] | None:
    """Return the storage dtype of a narrow type; None for any other dtype."""
    narrow = _BY_NAME.get(getattr(dtype, "name", ""))
    return None if narrow is None else narrow.storage_dtype
