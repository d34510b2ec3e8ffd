"""Fourier transforms that JAX called DUCC for on CPUs, until 0.4.27, as `jax.lax.fft`.

The call has a FlatBuffer as its first operand, which says the kind and the axes:
https://github.com/jax-ml/jax/blob/jax-v0.4.20/jaxlib/cpu/ducc_fft.fbs.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

# The places of fields in the tables of transforms of static shapes, and of dynamic ones.
_STATIC = {"kind": 1, "axes": 5, "forward": 6}
_DYNAMIC = {"kind": 2, "axes": 3, "forward": 4}
# Kinds of transforms: of complex numbers, and from them to real ones and back.
_TO_REAL, _FROM_REAL = 1, 2


def _static(op: LiftedOperation) -> Any:
    return _transform(op, _STATIC, op.shape)


def _dynamic(op: LiftedOperation) -> Any:
    return _transform(op, _DYNAMIC, op.dimensions(len(op.operands) - 1))


def _transform(op: LiftedOperation, places: dict[str, int], shape: Any) -> Any:
    packed, value = op.constant(0).tobytes(), op.array(1)
    kind = _byte(packed, places["kind"])
    is_forward = bool(_byte(packed, places["forward"]))
    axes = _axes(packed, places["axes"])
    rank = np.ndim(value)
    if axes != tuple(range(rank - len(axes), rank)):
        op.refuse("its axes are not the last ones, and JAX's fft has no other")
    name = ("" if is_forward else "I") + ("R" if kind in (_TO_REAL, _FROM_REAL) else "") + "FFT"
    sizes = shape if kind == _TO_REAL else value.shape
    return lax.fft(value, getattr(lax.FftType, name), tuple(sizes[axis] for axis in axes))


def _place(packed: bytes, field: int) -> int:
    """Return where a field of the table of a FlatBuffer is; 0 where it has its default."""
    (table,) = struct.unpack_from("<I", packed)
    (back,) = struct.unpack_from("<i", packed, table)
    slots = table - back
    (size,) = struct.unpack_from("<H", packed, slots)
    if 4 + 2 * field >= size:
        return 0
    (offset,) = struct.unpack_from("<H", packed, slots + 4 + 2 * field)
    return table + int(offset) if offset else 0


def _byte(packed: bytes, field: int) -> int:
    place = _place(packed, field)
    return packed[place] if place else 0


def _axes(packed: bytes, field: int) -> tuple[int, ...]:
    place = _place(packed, field)
    (start,) = struct.unpack_from("<I", packed, place)
    (count,) = struct.unpack_from("<I", packed, place + start)
    return struct.unpack_from(f"<{count}I", packed, place + start + 4)


CUSTOM_CALLS = {
    "ducc_fft": LiftingRule(_static, CUSTOM_CALL_ATTRIBUTES),
    "dynamic_ducc_fft": LiftingRule(_dynamic, CUSTOM_CALL_ATTRIBUTES),
}
