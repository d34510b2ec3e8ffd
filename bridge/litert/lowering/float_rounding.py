"""Floats rounded to formats that LiteRT does not have, by the bits of float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.litert.lowering import bit_operations as bits

_BIAS, _MANTISSA = 127, 23  # of float32


def round_to(value: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Return float32 as near as another format has them, without its subnormal numbers."""
    word = lax.bitcast_convert_type(value, np.int32)
    if (lost := _MANTISSA - mantissa_bits) > 0:
        odd = bits.low_bits(bits.shift_right_by(word, lost), 1)
        word = word + odd + np.int32((1 << (lost - 1)) - 1)
        word = word - bits.low_bits(word, lost)
    made = lax.bitcast_convert_type(word, np.float32)
    if exponent_bits < 8:
        bias = (1 << (exponent_bits - 1)) - 1
        size = jnp.abs(made)
        size = jnp.where(size >= np.float32(2.0 ** (bias + 1)), np.float32(np.inf), size)
        size = jnp.where(size < np.float32(2.0 ** (1 - bias)), np.float32(0), size)
        made = with_sign(size, value)
    return jnp.where(value != value, value, made)


def with_sign(size: Any, value: Any) -> Any:
    """Return numbers that are not negative with the signs of others, of zeros as well."""
    is_negative = lax.bitcast_convert_type(value, np.int32) < 0
    sign = jnp.where(is_negative, np.int32(-(1 << 31)), np.int32(0))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(size, np.int32) + sign, np.float32)


def round_to_byte(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return float32 as near as a dtype of 8 bits has them, its subnormal numbers included.

    Beyond its greatest number are infinities, or NaN in a dtype that has none.
    """
    limits: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    word = lax.bitcast_convert_type(value, np.int32)
    exponent = bits.low_bits(bits.shift_right_by(word, _MANTISSA), 8) - _BIAS
    exponent = jnp.maximum(exponent, np.int32(limits.minexp)) - limits.nmant
    step = lax.bitcast_convert_type((exponent + _BIAS) * np.int32(1 << _MANTISSA), np.float32)
    steps = lax.round(jnp.abs(value) / step, lax.RoundingMethod.TO_NEAREST_EVEN)
    size = steps * step
    has_infinities = "fn" not in dtype.name
    beyond = np.float32(np.inf if has_infinities else np.nan)
    size = jnp.where(size > np.float32(limits.max), beyond, size)
    made = with_sign(size, value)
    if "fnuz" in dtype.name:  # which has one zero
        made = jnp.where(size == 0, size, made)
    return jnp.where(value != value, value, made)
