"""The functions of complex numbers, of their real and imaginary parts.

They hold for the whole plane, with the branch cuts that XLA has, and neither overflow nor cancel
where the result does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class ComplexParts:
    """An array of complex numbers, as two arrays.

    Attributes:
        imag: the imaginary parts, of the same dtype.
    """

    real: Any
    imag: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape."""
        return np.shape(self.real)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the complex numbers."""
        is_wide = jnp.result_type(self.real) == np.float64
        return np.dtype(np.complex128 if is_wide else np.complex64)


def multiply(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    """Return the product."""
    return ComplexParts(
        left.real * right.real - left.imag * right.imag,
        left.real * right.imag + left.imag * right.real,
    )


def product(value: ComplexParts, axes: tuple[int, ...]) -> ComplexParts:
    """Return the product of the elements along some axes."""
    if not all(isinstance(value.shape[n], int) for n in axes):
        return _product_of_unknown_many(value, axes)
    others = [n for n in range(len(value.shape)) if n not in axes]
    shape = [value.shape[n] for n in others]
    lines = [
        jnp.reshape(lax.transpose(jnp.asarray(part), (*others, *axes)), (*shape, -1))
        for part in (value.real, value.imag)
    ]
    result = ComplexParts(jnp.ones(shape, lines[0].dtype), jnp.zeros(shape, lines[0].dtype))
    for n in range(lines[0].shape[-1]):
        result = multiply(result, ComplexParts(*(line[..., n] for line in lines)))
    return result


def _product_of_unknown_many(value: ComplexParts, axes: tuple[int, ...]) -> ComplexParts:
    def combine(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        both = multiply(ComplexParts(*left), ComplexParts(*right))
        return both.real, both.imag

    one = (_like(value.real, 1), _like(value.imag, 0))
    return ComplexParts(*lax.reduce((value.real, value.imag), one, combine, axes))


def _like(value: Any, number: float) -> Any:
    """Return a number in the dtype of an array."""
    return np.asarray(number, jnp.result_type(value))


def _add(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    return ComplexParts(left.real + right.real, left.imag + right.imag)


def _divide(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    """Return the quotient, which is 0 by an infinity, and an infinity by 0."""
    sizes = jnp.abs(right.real), jnp.abs(right.imag)
    scale = jnp.maximum(*sizes)
    is_zero = scale == 0
    safe = jnp.where(is_zero, _like(scale, 1), scale)
    real, imag = right.real / safe, right.imag / safe
    size = (real * real + imag * imag) * safe
    # An infinity with the sign of the divisor's real part, which may be -0.
    endless = _like(scale, 1) / right.real
    is_endless = (sizes[0] == np.inf) | (sizes[1] == np.inf)  # the other part may be NaN
    vanishes = is_endless & (jnp.abs(left.real) + jnp.abs(left.imag) < np.inf)

    def part(of_zero: Any, quotient: Any) -> Any:
        of_others = jnp.where(vanishes, _like(scale, 0), quotient)
        return jnp.where(is_zero, of_zero * endless, of_others)

    return ComplexParts(
        part(left.real, (left.real * real + left.imag * imag) / size),
        part(left.imag, (left.imag * real - left.real * imag) / size),
    )


def _turned(size: Any, angle: Any) -> ComplexParts:
    """Return the complex number of an absolute value and an angle."""
    return ComplexParts(size * lax.cos(angle), size * lax.sin(angle))


def _exponential(value: ComplexParts) -> ComplexParts:
    return _turned(lax.exp(value.real), value.imag)


def _exponential_minus_one(value: ComplexParts) -> ComplexParts:
    more = lax.expm1(value.real)
    half = lax.sin(value.imag * _like(value.imag, 0.5))
    real = more * lax.cos(value.imag) - 2 * half * half
    return ComplexParts(real, (more + 1) * lax.sin(value.imag))


def _logarithm(value: ComplexParts) -> ComplexParts:
    size = absolute(value)
    # Near 1 the absolute value has lost what its logarithm is made of.
    more = (value.real - 1) * (value.real + 1) + value.imag * value.imag
    near = lax.log1p(more) * _like(size, 0.5)
    is_near = (size > _like(size, 0.5)) & (size < 2)
    return ComplexParts(jnp.where(is_near, near, lax.log(size)), lax.atan2(value.imag, value.real))


def _logarithm_plus_one(value: ComplexParts) -> ComplexParts:
    """Return log(1 + z), whose real part is half of log1p(x (x + 2) + y y)."""
    total = ComplexParts(value.real + 1, value.imag)
    more = value.real * (value.real + 2) + value.imag * value.imag
    near = lax.log1p(more) * _like(more, 0.5)
    is_near = jnp.abs(more) < _like(more, 0.5)
    return ComplexParts(
        jnp.where(is_near, near, _logarithm(total).real), lax.atan2(total.imag, total.real)
    )


def _power(base: ComplexParts, exponent: ComplexParts) -> ComplexParts:
    """Return the power: that of 0 is 1 of any number, as in XLA, and other powers of 0 are 0."""
    raised = _exponential(multiply(exponent, _logarithm(base)))
    is_one = (exponent.real == 0) & (exponent.imag == 0)
    is_zero = (base.real == 0) & (base.imag == 0) & (exponent.imag == 0) & (exponent.real > 0)
    one, zero = _like(base.real, 1), _like(base.real, 0)
    real = jnp.where(is_one, one, jnp.where(is_zero, zero, raised.real))
    return ComplexParts(real, jnp.where(is_one | is_zero, zero, raised.imag))


def _cubic_root(value: ComplexParts) -> ComplexParts:
    """Return the root of a third of the angle, as XLA does."""
    third = jnp.full_like(value.real, 1 / 3)
    return _power(value, ComplexParts(third, jnp.zeros_like(third)))


def _reciprocal_square_root(value: ComplexParts) -> ComplexParts:
    """Return a part of the root by the absolute value, of 0 an infinity, and of infinity 0."""
    root, size = _square_root(value), absolute(value)
    real = jnp.where(size == 0, _like(size, np.inf), root.real / size)
    parts = (jnp.where(size == np.inf, _like(size, 0), part) for part in (real, -root.imag / size))
    return ComplexParts(*parts)


def _sign(value: ComplexParts) -> ComplexParts:
    size = absolute(value)
    safe = jnp.where(size == 0, _like(size, 1), size)
    return ComplexParts(value.real / safe, value.imag / safe)


def _square_root(value: ComplexParts) -> ComplexParts:
    """Return the root with a real part that is not negative, without a difference of parts."""
    half = _like(value.real, 0.5)
    large = lax.sqrt(absolute(value) * half + jnp.abs(value.real) * half)
    safe = jnp.where(large == 0, _like(large, 1), large)
    small = jnp.abs(value.imag) * half / safe
    is_right = value.real >= 0
    imag = jnp.where(is_right, small, large)
    is_negative = (value.imag < 0) | (_like(half, 1) / value.imag < 0)  # -0 as well
    return ComplexParts(jnp.where(is_right, large, small), jnp.where(is_negative, -imag, imag))


def _sine(value: ComplexParts) -> ComplexParts:
    grown, shrunk = _halves_of_exponential(value.imag)
    return ComplexParts(
        lax.sin(value.real) * (grown + shrunk), lax.cos(value.real) * _sinh(value.imag)
    )


def _cosine(value: ComplexParts) -> ComplexParts:
    grown, shrunk = _halves_of_exponential(value.imag)
    return ComplexParts(
        lax.cos(value.real) * (grown + shrunk), -lax.sin(value.real) * _sinh(value.imag)
    )


def _halves_of_exponential(value: Any) -> tuple[Any, Any]:
    """Return exp(x) / 2 and exp(-x) / 2."""
    half = _like(value, 0.5)
    return lax.exp(value) * half, lax.exp(-value) * half


def _sinh(value: Any) -> Any:
    """Return sinh(x), of small numbers by expm1."""
    grown, shrunk = _halves_of_exponential(value)
    more = lax.expm1(value)
    small = (more + more / (more + 1)) * _like(value, 0.5)
    return jnp.where(jnp.abs(value) < 1, small, grown - shrunk)


def _tangent(value: ComplexParts) -> ComplexParts:
    turned = _hyperbolic_tangent(ComplexParts(-value.imag, value.real))
    return ComplexParts(turned.imag, -turned.real)


def _hyperbolic_tangent(value: ComplexParts) -> ComplexParts:
    of_real = jnp.tanh(value.real)
    of_imag = lax.sin(value.imag) / lax.cos(value.imag)
    power = lax.exp(jnp.abs(value.real) * _like(of_real, -2))
    rest = 4 * power / ((1 + power) * (1 + power))  # 1 - tanh(x)**2
    square = of_imag * of_imag
    size = 1 + of_real * of_real * square
    return ComplexParts(of_real * (1 + square) / size, of_imag * rest / size)


def _logistic(value: ComplexParts) -> ComplexParts:
    """Return 1 / (1 + exp(-z)) = (1 + tanh(z / 2)) / 2."""
    half = _like(value.real, 0.5)
    turned = _hyperbolic_tangent(ComplexParts(value.real * half, value.imag * half))
    return ComplexParts(turned.real * half + half, turned.imag * half)


def absolute(value: ComplexParts) -> Any:
    """Return the absolute value, which overflows only where it has to."""
    real, imag = jnp.abs(value.real), jnp.abs(value.imag)
    large, small = jnp.maximum(real, imag), jnp.minimum(real, imag)
    ratio = small / jnp.where(large == 0, _like(large, 1), large)
    size = large * lax.sqrt(1 + ratio * ratio)
    # The maximum of NaN and a number is the number in some kernels.
    total, is_endless = real + imag, (real == np.inf) | (imag == np.inf)
    return jnp.where(is_endless, _like(size, np.inf), jnp.where(total != total, total, size))


# Of the operands of the operation of StableHLO that has the name.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": absolute,
    "add": _add,
    "cbrt": _cubic_root,
    "cosine": _cosine,
    "divide": _divide,
    "exponential": _exponential,
    "exponential_minus_one": _exponential_minus_one,
    "log": _logarithm,
    "log_plus_one": _logarithm_plus_one,
    "logistic": _logistic,
    "multiply": multiply,
    "negate": lambda value: ComplexParts(-value.real, -value.imag),
    "power": _power,
    "rsqrt": _reciprocal_square_root,
    "sign": _sign,
    "sine": _sine,
    "sqrt": _square_root,
    "subtract": lambda left, right: ComplexParts(left.real - right.real, left.imag - right.imag),
    "tan": _tangent,
    "tanh": _hyperbolic_tangent,
}
