"""Fourier transforms, as products with the matrices of small ones.

A transform of n = a b elements is one of a elements, a product with roots of unity, and one of b
elements (Cooley and Tukey), so that its cost grows with n times the sum of its factors. One of a
large prime number of elements is a convolution with a chirp (Bluestein), by transforms whose length
is a power of 2. Each is wrapped in a composite, for targets that have such an operation.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core_ops.decompositions.complex_functions import ComplexParts, multiply
from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.core_ops.transform_composite import TRANSFORM, sign_of
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule

_MAX_DIRECT = 64  # elements that are transformed by one product
_MAX_PRIME = 128  # from there on a prime number of elements is transformed by a convolution

# Makes the transform, of a sign, along the dimension before the last of pairs.
_Make = Callable[..., Any]
_Transform = Callable[[ComplexParts], ComplexParts]


def _fft(op: LiftedOperation) -> Any:
    kind = re.findall(r"I?R?FFT", op.text("fft_type"))[-1]
    lengths = op.integers("fft_length")
    if 0 in lengths:
        op.refuse("it transforms no elements")
    value = op.array(0)
    rank = len(np.shape(value))
    axes = range(rank - len(lengths), rank)
    sign = -1 if kind in {"FFT", "RFFT"} else 1
    transform = functools.partial(_transformed, sign=sign, make=_maker(op))
    if kind == "RFFT":
        return _as_array(_from_real(value, axes, transform))
    parts = ComplexParts(lax.real(value), lax.imag(value))
    if kind == "IRFFT":
        parts = _each(parts, axes[:-1], transform)
        return _along(parts, axes[-1], lambda line: transform(_whole(line, lengths[-1]))).real
    return _as_array(_each(parts, axes, transform))


def _from_real(value: Any, axes: range, transform: _Transform) -> ComplexParts:
    value = jnp.asarray(value)
    made = _along(
        ComplexParts(value, jnp.zeros_like(value)),
        axes[-1],
        lambda line: _mapped(lambda part: part[..., : line.shape[-1] // 2 + 1], transform(line)),
    )
    return _each(made, axes[:-1], transform)


def _as_array(value: ComplexParts) -> Any:
    return lax.complex(*map(jnp.asarray, (value.real, value.imag)))


def _each(value: ComplexParts, axes: Any, transform: _Transform) -> ComplexParts:
    """Return the transform along several axes."""
    for axis in axes:
        value = _along(value, axis, transform)
    return value


def _mapped(function: Callable[..., Any], value: ComplexParts) -> ComplexParts:
    return ComplexParts(function(value.real), function(value.imag))


def _like(value: Any, array: Any) -> Any:
    """Return numbers in the dtype of an array."""
    return np.asarray(array, jnp.result_type(value))


def _along(value: ComplexParts, axis: int, transform: _Transform) -> ComplexParts:
    moved = _mapped(lambda part: jnp.moveaxis(jnp.asarray(part), axis, -1), value)
    return _mapped(lambda part: jnp.moveaxis(part, -1, axis), transform(moved))


def _whole(value: ComplexParts, length: int) -> ComplexParts:
    """Return the transform of real numbers, of its half; imaginary parts of the ends are none."""
    used = _mapped(lambda part: part[..., : length // 2 + 1], value)
    inner = _mapped(lambda part: part[..., 1 : (length + 1) // 2][..., ::-1], used)
    ends = np.ones(length // 2 + 1)
    ends[0] = 0
    if length % 2 == 0:
        ends[-1] = 0
    real = jnp.concatenate([used.real, inner.real], -1)
    imag = jnp.concatenate([used.imag * _like(used.imag, ends), -inner.imag], -1)
    return ComplexParts(real, imag)


def _transformed(value: ComplexParts, sign: int, make: _Make) -> ComplexParts:
    """Return the transform along the last axis."""
    made = make(jnp.stack([value.real, value.imag], -1), sign=np.int32(sign))
    return ComplexParts(made[..., 0], made[..., 1])


def _maker(op: LiftedOperation) -> _Make:
    return _composite if op.may_compose else _plain


def _composite(pairs: Any, *, sign: Any) -> Any:
    return lax.composite(functools.partial(_products, make=_composite), TRANSFORM)(pairs, sign=sign)


def _plain(pairs: Any, *, sign: Any) -> Any:
    return _products(pairs, sign=sign, make=_plain)


def _products(pairs: Any, *, sign: Any, make: _Make) -> Any:
    sums = _sums(ComplexParts(pairs[..., 0], pairs[..., 1]), int(sign), make)
    made = jnp.stack([sums.real, sums.imag], -1)
    length = pairs.shape[-2]
    return made * _like(made, 1 / length) if sign > 0 and length != 1 else made


def _roots(exponents: Any, length: int, sign: int) -> tuple[Any, Any]:
    """Return the real and imaginary parts of powers of a root of unity."""
    angles = sign * 2 * np.pi * (np.asarray(exponents) % length) / length
    # The zeros among them are exact.
    return np.round(np.cos(angles), 15), np.round(np.sin(angles), 15)


def _sums(value: ComplexParts, sign: int, make: _Make) -> ComplexParts:
    """Return the sums along the last axis."""
    length = int(np.shape(value)[-1])
    outer = _factor(length)
    if outer == 1:
        if length <= _MAX_PRIME:
            return _direct(value, sign)
        return _by_convolution(value, sign, make)
    inner = length // outer
    shape = np.shape(value)[:-1]
    columns = _mapped(
        lambda part: jnp.swapaxes(jnp.reshape(part, (*shape, outer, inner)), -1, -2), value
    )
    columns = _sums(columns, sign, make)
    cosines, sines = _roots(np.arange(inner)[:, None] * np.arange(outer), length, sign)
    turned = _times(columns, cosines + 1j * sines)
    rows = _sums(_mapped(lambda part: jnp.swapaxes(part, -1, -2), turned), sign, make)
    return _mapped(lambda part: jnp.reshape(jnp.swapaxes(part, -1, -2), (*shape, length)), rows)


def _by_convolution(value: ComplexParts, sign: int, make: _Make) -> ComplexParts:
    """Return the sums along the last axis, since 2 j k = j j + k k - (j - k) (j - k)."""
    length = int(np.shape(value)[-1])
    size = 1 << (2 * length - 2).bit_length()
    squares = np.arange(length) ** 2 % (2 * length)
    chirp = np.exp(sign * 1j * np.pi * squares / length)
    kernel = np.zeros(size, complex)
    kernel[:length] = chirp.conj()
    kernel[size - length + 1 :] = chirp.conj()[:0:-1]
    turned = _times(value, chirp)
    wide = [(0, 0)] * (turned.real.ndim - 1) + [(0, size - length)]
    spectrum = _transformed(_mapped(lambda part: jnp.pad(part, wide), turned), -1, make)
    made = _transformed(_times(spectrum, np.fft.fft(kernel)), 1, make)
    return _times(_mapped(lambda part: part[..., :length], made), chirp)


def _times(value: ComplexParts, factors: Any) -> ComplexParts:
    """Return products with complex constants."""
    parts = (_like(value.real, part) for part in (factors.real, factors.imag))
    return multiply(value, ComplexParts(*parts))


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
    """Return the composite, for decompositions that come later."""
    return _maker(op)(op.arrays[-1], sign=np.int32(sign_of(op)))


COMPOSITES = {TRANSFORM: LiftingRule(_again)}
FOURIER_AS_PRODUCTS = Decomposition(
    name="Fourier transforms",
    table=table_with(
        {"stablehlo.fft": LiftingRule(_fft, ("fft_length", "fft_type"))},
        target="products of matrices",
    ),
    operations=frozenset({"stablehlo.fft"}),
)
