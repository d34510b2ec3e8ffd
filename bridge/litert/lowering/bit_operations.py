"""Operations on the bits of integers, of those that LiteRT has.

These are `and`, for int32 also `xor` and shifts, and for uint32 the shift that brings in zeros.
Numbers are int32 or int64 with the bits of the integer that they stand for. Those of int64 are
pairs of int32 where there is no kernel for them.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

_HALF = 32
# 2 to the power of a shift; nothing is left of what is shifted by all bits.
_POWERS = {
    width: np.array([(1 << n) % 2**64 for n in range(width)] + [0], np.uint64).astype(f"int{width}")
    for width in (32, 64)
}


def _width(value: Any) -> int:
    return 8 * int(jnp.result_type(value).itemsize)


def _halves(value: Any) -> tuple[Any, Any]:
    """Return the low and the high 32 bits of int64."""
    parts = lax.bitcast_convert_type(value, np.int32)
    return parts[..., 0], parts[..., 1]


def _joined(low: Any, high: Any) -> Any:
    return lax.bitcast_convert_type(jnp.stack([low, high], -1), np.int64)


def _known_number(count: Any) -> int | None:
    """Return the number that a constant repeats."""
    if isinstance(count, np.ndarray) and count.size and (count == count.flat[0]).all():
        return int(count.flat[0])
    return None


def shift_left(value: Any, count: Any) -> Any:
    """Return integers shifted to the left, with 0 for counts beyond the bits."""
    width = _width(value)
    if (number := _known_number(count)) is not None:
        return value * _POWERS[width][number if 0 <= number <= width else width]
    inside = jnp.logical_and(count >= 0, count < width)
    if width == _HALF:
        by = jnp.broadcast_to(jnp.where(inside, count, 0), np.shape(value)).astype(np.int32)
        return jnp.where(inside, lax.shift_left(value, by), 0)
    place = jnp.where(inside, count, width).astype(np.int32)
    return value * jnp.take(_POWERS[width], place, mode="clip")


def shift_right_arithmetic(value: Any, count: Any) -> Any:
    """Return integers shifted to the right by counts below the number of bits."""
    if _width(value) == _HALF:
        return lax.shift_right_arithmetic(value, jnp.broadcast_to(count, np.shape(value)))
    low, high = _halves(jnp.asarray(value))
    count = jnp.broadcast_to(count, np.shape(value)).astype(np.int32)
    is_far = count >= _HALF
    near = jnp.where(is_far, count - _HALF, count)
    moved = lax.shift_right_arithmetic(high, near)
    signs = lax.shift_right_arithmetic(high, jnp.full_like(high, _HALF - 1))
    # What comes out of the high half has places of its own.
    mixed = shift_right(low, near) + shift_left(high, _HALF - near)
    return _joined(jnp.where(is_far, moved, mixed), jnp.where(is_far, signs, moved))


def shift_right(value: Any, count: Any) -> Any:
    """Return integers shifted to the right with zeros from the left, and 0 for other counts."""
    count = jnp.asarray(count)
    inside = jnp.logical_and(count >= 0, count < _width(value))
    safe = jnp.broadcast_to(jnp.where(inside, count, 0), np.shape(value)).astype(np.int32)
    if _width(value) == _HALF:
        return jnp.where(inside, _logical(value, safe), 0)
    low, high = _halves(jnp.asarray(value))
    is_far = safe >= _HALF
    near = jnp.where(is_far, safe - _HALF, safe)
    moved = _logical(high, near)
    # What comes out of the high half has places of its own.
    mixed = bit_or(_logical(low, near), shift_left(high, _HALF - near))
    made = _joined(jnp.where(is_far, moved, mixed), jnp.where(is_far, 0, moved))
    return jnp.where(inside, made, 0)


def _logical(value: Any, count: Any) -> Any:
    """Return int32 shifted by counts below the number of bits, with zeros from the left."""
    words = lax.shift_right_logical(
        lax.bitcast_convert_type(value, np.uint32), lax.bitcast_convert_type(count, np.uint32)
    )
    return lax.bitcast_convert_type(words, np.int32)


def shift_right_by(value: Any, number: int) -> Any:
    """Return integers shifted to the right by a known number of bits, with zeros from the left."""
    width = _width(value)
    if not 0 <= number < width:
        return jnp.zeros_like(value)
    if number == 0:
        return value
    if width == _HALF:
        return _logical(value, jnp.full_like(value, number))
    low, high = _halves(value)
    if number >= _HALF:
        return _joined(shift_right_by(high, number - _HALF), jnp.zeros_like(high))
    mixed = shift_right_by(low, number) + high * _POWERS[_HALF][_HALF - number]
    return _joined(mixed, shift_right_by(high, number))


def low_bits(value: Any, count: int) -> Any:
    """Return the lowest bits of integers as numbers from 0 on."""
    width = _width(value)
    return value if count >= width else bit_and(value, np.array((1 << count) - 1, f"int{width}"))


def bit_and(left: Any, right: Any) -> Any:
    """Return the bits that two integers share."""
    return lax.bitwise_and(*jnp.broadcast_arrays(jnp.asarray(left), jnp.asarray(right)))


def bit_or(left: Any, right: Any) -> Any:
    """Return the bits of either integer."""
    return left + right - bit_and(left, right)


def bit_xor(left: Any, right: Any) -> Any:
    """Return the bits of one of two integers."""
    if _width(left) == _HALF:
        return lax.bitwise_xor(*jnp.broadcast_arrays(jnp.asarray(left), jnp.asarray(right)))
    return left + right - bit_and(left, right) * 2


def bit_not(value: Any) -> Any:
    """Return integers with each bit turned."""
    return -1 - value


def popcount(value: Any) -> Any:
    """Return how many bits are set."""
    if _width(value) != _HALF:
        low, high = _halves(value)
        return (popcount(low) + popcount(high)).astype(np.int64)
    pairs = value - bit_and(shift_right_by(value, 1), np.int32(0x55555555))
    mask = np.int32(0x33333333)
    fours = bit_and(pairs, mask) + bit_and(shift_right_by(pairs, 2), mask)
    bytes_ = bit_and(fours + shift_right_by(fours, 4), np.int32(0x0F0F0F0F))
    return shift_right_by(bytes_ * np.int32(0x01010101), 24)


def leading_zeros(value: Any) -> Any:
    """Return how many bits above the highest one are 0."""
    if _width(value) != _HALF:
        low, high = _halves(value)
        lower = leading_zeros(low) + _HALF
        return jnp.where(high == 0, lower, leading_zeros(high)).astype(np.int64)
    # Of a number below 2**24 float32 has all bits, so that its exponent says the highest one.
    is_large = shift_right_by(value, 16) != 0
    word = jnp.where(is_large, shift_right_by(value, 16), value)
    exponent = shift_right_by(lax.bitcast_convert_type(word.astype(np.float32), np.int32), 23)
    count = jnp.where(word == 0, _HALF, _HALF - 1 + 127 - exponent)
    return jnp.where(is_large, count - 16, count)
