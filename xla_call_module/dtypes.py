"""The one dtype table: the names that JAX, numpy, StableHLO and TensorFlow have for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.errors import DtypeError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type, on both sides of the bridge.

    Attributes:
        name: the name that JAX, numpy (with ml_dtypes) and TensorFlow share, such as `bfloat16`.
        enum: its number in TensorFlow's `DataType` enum
            (tensorflow/core/framework/types.proto), which is what files hold; 0, which is
            DT_INVALID, for those of JAX alone.
        mlir: the element type as StableHLO writes it, such as `bf16`.
        differentiable: whether TensorFlow propagates gradients through it
            (tensorflow/python/eager/backprop_util.py, `IsTrainable`).
    """

    name: str
    enum: int
    mlir: str
    differentiable: bool = False

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; those that numpy lacks come from ml_dtypes."""
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_complex(self) -> bool:
        """Return whether gradients are conjugated between JAX and TensorFlow."""
        return self.name.startswith("complex")


DTYPES = (
    DType("bool", 10, "i1"),
    DType("int8", 6, "i8"),
    DType("int16", 5, "i16"),
    DType("int32", 3, "i32"),
    DType("int64", 9, "i64"),
    DType("uint8", 4, "ui8"),
    DType("uint16", 17, "ui16"),
    DType("uint32", 22, "ui32"),
    DType("uint64", 23, "ui64"),
    DType("float16", 19, "f16", differentiable=True),
    DType("bfloat16", 14, "bf16", differentiable=True),
    DType("float32", 1, "f32", differentiable=True),
    DType("float64", 2, "f64", differentiable=True),
    DType("complex64", 8, "complex<f32>", differentiable=True),
    DType("complex128", 18, "complex<f64>", differentiable=True),
    DType("float8_e4m3fn", 25, "f8E4M3FN"),
    DType("float8_e5m2", 24, "f8E5M2"),
)

# What JAX has, and the op does not carry.
NARROW_DTYPES = (
    DType("int2", 0, "i2"),
    DType("int4", 0, "i4"),
    DType("uint2", 0, "ui2"),
    DType("uint4", 0, "ui4"),
    DType("float4_e2m1fn", 0, "f4E2M1FN"),
    DType("float8_e3m4", 0, "f8E3M4"),
    DType("float8_e4m3", 0, "f8E4M3"),
    DType("float8_e4m3b11fnuz", 0, "f8E4M3B11FNUZ"),
    DType("float8_e4m3fnuz", 0, "f8E4M3FNUZ"),
    DType("float8_e5m2fnuz", 0, "f8E5M2FNUZ"),
    DType("float8_e8m0fnu", 0, "f8E8M0FNU"),
)

# What JAX has only while jax_enable_x64 is on.
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_NARROW_BY_NAME = {dtype.name: dtype for dtype in NARROW_DTYPES}
_BY_ENUM = {dtype.enum: dtype for dtype in DTYPES}

# XLA packs two 4-bit integers in a byte and TensorFlow's op kernels one, so results differ from
# run to run; the others have no TensorFlow dtype, or no kernel that passes them to XLA. Each with
# a dtype that goes through and holds all of its values.
_REFUSED = {
    "int4": "int8",
    "int2": "int8",
    "int1": "int8",
    "uint4": "uint8",
    "uint2": "uint8",
    "uint1": "uint8",
    "float8_e3m4": "bfloat16",
    "float8_e4m3": "bfloat16",
    "float8_e4m3b11fnuz": "bfloat16",
    "float8_e4m3fnuz": "bfloat16",
    "float8_e5m2fnuz": "bfloat16",
    "float8_e8m0fnu": "bfloat16",
    "float6_e2m3fn": "bfloat16",
    "float6_e3m2fn": "bfloat16",
    "float4_e2m1fn": "bfloat16",
}


def dtype_from_name(name: str, *, where: str, narrow: bool = False) -> DType:
    """Return the table's entry for a JAX or numpy dtype name."""
    if (dtype := _BY_NAME.get(name)) is not None:
        return dtype
    if narrow and (dtype := _NARROW_BY_NAME.get(name)) is not None:
        return dtype
    wider = _REFUSED.get(name)
    cure = f"convert it to {wider} before it crosses" if wider else "use one of these"
    raise DtypeError(
        f"{where} has dtype {name}, which the XlaCallModule op cannot carry bit for bit. "
        f"Dtypes that go through: {', '.join(_BY_NAME)}. To do: {cure}."
    )


def dtype_from_tensorflow(enum: int, *, where: str) -> DType:
    """Return the table's entry for a number of TensorFlow's `DataType` enum."""
    if (dtype := _BY_ENUM.get(enum)) is not None:
        return dtype
    raise DtypeError(
        f"{where} has TensorFlow dtype number {enum}; those that JAX has, too, are "
        f"{', '.join(f'{d.name} ({d.enum})' for d in DTYPES)}. To do: "
        "convert it to one of these."
    )
