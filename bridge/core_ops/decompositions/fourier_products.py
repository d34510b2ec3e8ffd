"""Fourier transforms, as products with the matrices of small ones.

A transform of n = a b elements is one of a elements, a product with roots of unity, and one of b
elements (Cooley and Tukey), so that its cost grows with n times the sum of its factors. Each is
wrapped in a composite, of which a target with such an operation makes that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core._jax import has_symbolic_composites
from bridge.core_ops.decompositions.complex_functions import ComplexParts
from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.attributes import Attributes, dictionary

__all__ = ["COMPOSITES", "FOURIER_AS_PRODUCTS", "TRANSFORM", "sign_of"]

# The composite of a transform along the dimension before the last, which has the two parts.
TRANSFORM = "jax_tf_bridge.dft"

_MAX_DIRECT = 64  # elements that are transformed by one product
_MAX_FACTOR = 2048  # the largest prime factor of a length


def _fft(op: LiftedOperation) -> Any:
    kind = re.findall(r"I?R?FFT", op.text("fft_type"))[-1]
    lengths = op.integers("fft_length")
    for length in lengths:
        if _largest_prime(length) > _MAX_FACTOR:
            op.refuse(
                f"it transforms {length} elements, which has a prime factor above {_MAX_FACTOR}",
                "transform a length with small factors, such as a power of 2",
            )
    if 0 in lengths:
        op.refuse("it transforms no elements")
    value = op.array(0)
    rank = len(np.shape(value))
    axes = range(rank - len(lengths), rank)
    if kind == "RFFT":
        return _as_array(_from_real(value, axes))
    parts = ComplexParts(lax.real(value), lax.imag(value))
    if kind == "IRFFT":
        parts = _each(parts, axes[:-1], 1)
        return _along(parts, axes[-1], lambda line: _to_real(line, lengths[-1])).real
    return _as_array(_each(parts, axes, -1 if kind == "FFT" else 1))


def _from_real(value: Any, axes: range) -> ComplexParts:
    value = jnp.asarray(value)
    made = _along(
        ComplexParts(value, jnp.zeros_like(value)),
        axes[-1],
        lambda line: _mapped(
            lambda part: part[..., : line.shape[-1] // 2 + 1], _transformed(line, -1)
        ),
    )
    return _each(made, axes[:-1], -1)


def _as_array(value: ComplexParts) -> Any:
    return lax.complex(*map(jnp.asarray, (value.real, value.imag)))


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
        value = _along(value, axis, lambda line: _transformed(line, sign))
    return value


def _mapped(function: Callable[..., Any], value: ComplexParts) -> ComplexParts:
    return ComplexParts(function(value.real), function(value.imag))


def _like(value: Any, array: Any) -> Any:
    """Return numbers in the dtype of an array."""
    return np.asarray(array, jnp.result_type(value))


def _along(
    value: ComplexParts, axis: int, transform: Callable[[ComplexParts], ComplexParts]
) -> ComplexParts:
    moved = _mapped(lambda part: jnp.moveaxis(jnp.asarray(part), axis, -1), value)
    return _mapped(lambda part: jnp.moveaxis(part, -1, axis), transform(moved))


def _to_real(value: ComplexParts, length: int) -> ComplexParts:
    """Return the inverse transform of a half, the imaginary parts of whose ends do not count."""
    used = _mapped(lambda part: part[..., : length // 2 + 1], value)
    inner = _mapped(lambda part: part[..., 1 : (length + 1) // 2][..., ::-1], used)
    ends = np.ones(length // 2 + 1)
    ends[0] = 0
    if length % 2 == 0:
        ends[-1] = 0
    real = jnp.concatenate([used.real, inner.real], -1)
    imag = jnp.concatenate([used.imag * _like(used.imag, ends), -inner.imag], -1)
    return _transformed(ComplexParts(real, imag), 1)


def _transformed(value: ComplexParts, sign: int) -> ComplexParts:
    """Return the transform along the last axis, as a composite."""
    made = _composite(jnp.stack([value.real, value.imag], -1), sign)
    return ComplexParts(made[..., 0], made[..., 1])


def _composite(pairs: Any, sign: int) -> Any:
    if not all(isinstance(size, int) for size in pairs.shape) and not has_symbolic_composites():
        return _transform_pairs(pairs, sign=sign)
    return lax.composite(_transform_pairs, TRANSFORM)(pairs, sign=np.int32(sign))


def _transform_pairs(pairs: Any, *, sign: Any) -> Any:
    sums = _sums(ComplexParts(pairs[..., 0], pairs[..., 1]), int(sign))
    made = jnp.stack([sums.real, sums.imag], -1)
    length = pairs.shape[-2]
    return made * _like(made, 1 / length) if sign > 0 and length != 1 else made


def _roots(exponents: Any, length: int, sign: int) -> tuple[Any, Any]:
    """Return the real and imaginary parts of powers of a root of unity."""
    angles = sign * 2 * np.pi * (np.asarray(exponents) % length) / length
    # The zeros among them are exact.
    return np.round(np.cos(angles), 15), np.round(np.sin(angles), 15)


def _sums(value: ComplexParts, sign: int) -> ComplexParts:
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
    columns = _sums(columns, sign)
    roots = _roots(np.arange(inner)[:, None] * np.arange(outer), length, sign)
    cosines, sines = (_like(columns.real, part) for part in roots)
    turned = ComplexParts(
        columns.real * cosines - columns.imag * sines,
        columns.real * sines + columns.imag * cosines,
    )
    rows = _sums(_mapped(lambda part: jnp.swapaxes(part, -1, -2), turned), sign)
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
    matrix = _like(value.real, np.block([[cosines, sines], [-sines, cosines]]))
    both = jnp.concatenate([value.real, value.imag], -1)
    made = lax.dot_general(both, matrix, (((both.ndim - 1,), (0,)), ((), ())))
    return ComplexParts(made[..., :length], made[..., length:])


def _again(op: LiftedOperation) -> Any:
    """Return the composite, for decompositions that come later.

    JAX passes it the constants of its decomposition before the array.
    """
    return _composite(op.arrays[-1], sign_of(op))


def sign_of(op: Attributes) -> int:
    """Return the sign of the exponents of a composite `TRANSFORM`."""
    return int(dictionary(op.raw.attributes["composite_attributes"])["sign"].value)


COMPOSITES = {TRANSFORM: LiftingRule(_again)}
FOURIER_AS_PRODUCTS = Decomposition(
    name="Fourier transforms",
    table=table_with(
        {"stablehlo.fft": LiftingRule(_fft, ("fft_length", "fft_type"))},
        target="products of matrices",
    ),
    operations=frozenset({"stablehlo.fft"}),
    needs=frozenset({"f32", "f64"}),
)
