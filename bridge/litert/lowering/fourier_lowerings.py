"""Fourier transforms, as products with the matrices of small ones.

A transform of n = a b elements is one of a elements, a product with roots of unity, and one of b
elements (Cooley and Tukey), so that its cost grows with n times the sum of its factors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftingRule
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import ComplexParts

__all__ = ["RULES"]

_MAX_DIRECT = 64  # elements that are transformed by one product
_MAX_FACTOR = 2048  # the largest prime factor of a length


def _fft(op: LoweredOperation) -> Any:
    kind = re.findall(r"I?R?FFT", op.text("fft_type"))[-1]
    lengths = op.integers("fft_length")
    for length in lengths:
        if _largest_prime(length) > _MAX_FACTOR:
            op.refuse(
                f"it transforms {length} elements, which has a prime factor above {_MAX_FACTOR}",
                "transform a length with small factors, such as a power of 2",
            )
    (value,) = op.arrays
    rank = len(np.shape(value))
    axes = range(rank - len(lengths), rank)
    if 0 in lengths:
        op.refuse("it transforms no elements")
    if kind == "RFFT":
        made = _along(value_of_real(value), axes[-1], lambda line: _half(_transform(line, -1)))
        return _each(made, axes[:-1], -1)
    if kind == "IRFFT":
        value = _each(value, axes[:-1], 1)
        return _along(value, axes[-1], lambda line: _to_real(line, lengths[-1])).real
    return _each(value, axes, -1 if kind == "FFT" else 1)


def value_of_real(value: Any) -> ComplexParts:
    """Return real numbers as complex ones."""
    value = jnp.asarray(value)
    return ComplexParts(value, jnp.zeros_like(value))


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            largest, number = factor, number // factor
        factor += 1
    return max(largest, number)


def _each(value: ComplexParts, axes: Any, sign: int) -> ComplexParts:
    """Return the transform along several axes, the inverse one if the sign is positive."""
    for axis in axes:
        size = np.shape(value)[axis] if sign > 0 else 1
        value = _along(value, axis, lambda line: _transform(line, sign))
        if size != 1:
            value = _divided(value, size)
    return value


def _divided(value: ComplexParts, size: int) -> ComplexParts:
    return _mapped(lambda part: part * np.float32(1 / size), value)


def _mapped(function: Callable[..., Any], value: ComplexParts) -> ComplexParts:
    return ComplexParts(function(value.real), function(value.imag))


def _along(
    value: ComplexParts, axis: int, transform: Callable[[ComplexParts], ComplexParts]
) -> ComplexParts:
    moved = _mapped(lambda part: jnp.moveaxis(jnp.asarray(part), axis, -1), value)
    return _mapped(lambda part: jnp.moveaxis(part, -1, axis), transform(moved))


def _half(value: ComplexParts) -> ComplexParts:
    """Return the part of the transform of real numbers of which the rest is the conjugate."""
    return _mapped(lambda part: part[..., : part.shape[-1] // 2 + 1], value)


def _to_real(value: ComplexParts, length: int) -> ComplexParts:
    """Return the inverse transform of a half, the imaginary parts of whose ends do not count."""
    used = _mapped(lambda part: part[..., : length // 2 + 1], value)
    inner = _mapped(lambda part: part[..., 1 : (length + 1) // 2][..., ::-1], used)
    ends = np.ones(length // 2 + 1, np.float32)
    ends[0] = 0
    if length % 2 == 0:
        ends[-1] = 0
    real = jnp.concatenate([used.real, inner.real], -1)
    imag = jnp.concatenate([used.imag * ends, -inner.imag], -1)
    return _divided(_transform(ComplexParts(real, imag), 1), length)


def _roots(exponents: Any, length: int, sign: int) -> tuple[Any, Any]:
    """Return the real and imaginary parts of powers of a root of unity."""
    angles = sign * 2 * np.pi * (np.asarray(exponents) % length) / length
    # The zeros among them are exact.
    return tuple(np.round(part, 15).astype(np.float32) for part in (np.cos(angles), np.sin(angles)))  # type: ignore[return-value]


def _transform(value: ComplexParts, sign: int) -> ComplexParts:
    """Return the sums along the last axis."""
    length = int(np.shape(value)[-1])
    outer = _factor(length)
    if outer == 1:
        return _direct(value, sign)
    inner = length // outer
    shape = np.shape(value)[:-1]
    columns = _mapped(
        lambda part: jnp.swapaxes(jnp.reshape(part, (*shape, outer, inner)), -1, -2), value
    )
    columns = _transform(columns, sign)
    cosines, sines = _roots(np.arange(inner)[:, None] * np.arange(outer), length, sign)
    turned = ComplexParts(
        columns.real * cosines - columns.imag * sines,
        columns.real * sines + columns.imag * cosines,
    )
    rows = _transform(_mapped(lambda part: jnp.swapaxes(part, -1, -2), turned), sign)
    return _mapped(lambda part: jnp.reshape(jnp.swapaxes(part, -1, -2), (*shape, length)), rows)


def _factor(length: int) -> int:
    """Return the factor nearest to the square root; 1 where one product is as good."""
    if length <= _MAX_DIRECT:
        return 1
    return max(n for n in range(1, math.isqrt(length) + 1) if length % n == 0)


def _direct(value: ComplexParts, sign: int) -> ComplexParts:
    length = int(np.shape(value)[-1])
    numbers = np.arange(length)
    cosines, sines = _roots(numbers[:, None] * numbers, length, sign)
    matrix = np.block([[cosines, sines], [-sines, cosines]])
    both = jnp.concatenate([value.real, value.imag], -1)
    made = lax.dot_general(both, matrix, (((both.ndim - 1,), (0,)), ((), ())))
    return ComplexParts(made[..., :length], made[..., length:])


RULES = {"stablehlo.fft": LiftingRule(_fft, ("fft_length", "fft_type"))}
