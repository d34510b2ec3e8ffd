"""Complex numbers, as pairs of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import Lift, LiftingRule
from bridge.litert.lowering import elementary_lowerings
from bridge.litert.lowering.float_rounding import with_sign
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import ComplexParts

__all__ = ["RULES", "multiply", "product", "with_parts"]


def with_parts(name: str, lift: Lift) -> Lift:
    """Return a rule that computes complex numbers by the one that is for them."""
    of_parts = _OF_PARTS.get(name)

    def lower(op: LoweredOperation) -> Any:
        if not op.is_complex or name in _OWN:
            return lift(op)
        if of_parts is None:
            op.refuse("LiteRT computes this of no complex numbers")
        return of_parts(*op.arrays)

    return lower


def multiply(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    """Return the product."""
    return ComplexParts(
        left.real * right.real - left.imag * right.imag,
        left.real * right.imag + left.imag * right.real,
    )


def product(value: ComplexParts, axes: tuple[int, ...]) -> ComplexParts:
    """Return the product of the elements along some axes."""
    rank = len(value.shape)
    kept = [n for n in range(rank) if n not in axes]
    shape = [value.shape[n] for n in kept]
    lines = [
        jnp.reshape(lax.transpose(jnp.asarray(part), (*kept, *axes)), (*shape, -1))
        for part in (value.real, value.imag)
    ]
    made = ComplexParts(jnp.ones(shape, np.float32), jnp.zeros(shape, np.float32))
    for n in range(lines[0].shape[-1]):
        made = multiply(made, ComplexParts(*(line[..., n] for line in lines)))
    return made


def _add(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    return ComplexParts(left.real + right.real, left.imag + right.imag)


def _subtract(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    return ComplexParts(left.real - right.real, left.imag - right.imag)


def _divide(left: ComplexParts, right: ComplexParts) -> ComplexParts:
    scale = jnp.maximum(jnp.abs(right.real), jnp.abs(right.imag))
    is_zero = scale == 0
    safe = jnp.where(is_zero, np.float32(1), scale)
    real, imag = right.real / safe, right.imag / safe
    size = (real * real + imag * imag) * safe
    endless = with_sign(jnp.full_like(size, np.inf), right.real)
    return ComplexParts(
        jnp.where(is_zero, left.real * endless, (left.real * real + left.imag * imag) / size),
        jnp.where(is_zero, left.imag * endless, (left.imag * real - left.real * imag) / size),
    )


def _turned(size: Any, angle: Any) -> ComplexParts:
    """Return the complex number of an absolute value and an angle."""
    return ComplexParts(
        size * elementary_lowerings.cosine(angle), size * elementary_lowerings.sine(angle)
    )


def _exponential(value: ComplexParts) -> ComplexParts:
    return _turned(elementary_lowerings.exponential(value.real), value.imag)


def _exponential_minus_one(value: ComplexParts) -> ComplexParts:
    more = elementary_lowerings.exponential_minus_one(value.real)
    half = elementary_lowerings.sine(value.imag * np.float32(0.5))
    real = more * elementary_lowerings.cosine(value.imag) - 2 * half * half
    return ComplexParts(real, (more + 1) * elementary_lowerings.sine(value.imag))


def _angle(value: ComplexParts) -> Any:
    return lax.atan2(value.imag, value.real)


def _logarithm(value: ComplexParts) -> ComplexParts:
    size = absolute(value)
    # Near 1 the absolute value has lost what its logarithm is made of.
    more = (value.real - 1) * (value.real + 1) + value.imag * value.imag
    near = elementary_lowerings.logarithm_plus_one(more) * np.float32(0.5)
    far = elementary_lowerings.logarithm(size)
    is_near = (size > np.float32(0.5)) & (size < 2)
    return ComplexParts(jnp.where(is_near, near, far), _angle(value))


def _power(base: ComplexParts, exponent: ComplexParts) -> ComplexParts:
    raised = _exponential(multiply(exponent, _logarithm(base)))
    is_zero = (base.real == 0) & (base.imag == 0) & (exponent.imag == 0) & (exponent.real >= 0)
    power_of_zero = jnp.where(exponent.real == 0, np.float32(1), np.float32(0))
    real = jnp.where(is_zero, power_of_zero, raised.real)
    return ComplexParts(real, jnp.where(is_zero, np.float32(0), raised.imag))


def _reciprocal_square_root(value: ComplexParts) -> ComplexParts:
    size = elementary_lowerings.reciprocal_square_root(absolute(value))
    return _turned(size, _angle(value) * np.float32(-0.5))


def _sign(value: ComplexParts) -> ComplexParts:
    size = absolute(value)
    safe = jnp.where(size == 0, np.float32(1), size)
    return ComplexParts(value.real / safe, value.imag / safe)


def _square_root(value: ComplexParts) -> ComplexParts:
    return _turned(
        elementary_lowerings.square_root(absolute(value)), _angle(value) * np.float32(0.5)
    )


def _tangent(value: ComplexParts) -> ComplexParts:
    turned = _hyperbolic_tangent(ComplexParts(-value.imag, value.real))
    return ComplexParts(turned.imag, -turned.real)


def _hyperbolic_tangent(value: ComplexParts) -> ComplexParts:
    of_real = jnp.tanh(value.real)
    of_imag = elementary_lowerings.sine(value.imag) / elementary_lowerings.cosine(value.imag)
    power = elementary_lowerings.exponential(jnp.abs(value.real) * np.float32(-2))
    rest = 4 * power / ((1 + power) * (1 + power))  # 1 - tanh(x)**2
    square = of_imag * of_imag
    size = 1 + of_real * of_real * square
    return ComplexParts(of_real * (1 + square) / size, of_imag * rest / size)


def absolute(value: ComplexParts) -> Any:
    """Return the absolute value, which overflows only where it has to."""
    real, imag = jnp.abs(value.real), jnp.abs(value.imag)
    large, small = jnp.maximum(real, imag), jnp.minimum(real, imag)
    ratio = small / jnp.where(large == 0, 1.0, large)
    size = jnp.where(large == np.inf, large, large * jnp.sqrt(1 + ratio * ratio))
    # The maximum of NaN and a number is the number in some kernels.
    total = real + imag
    return jnp.where((total != total) & (large != np.inf), total, size)


def _negate(value: ComplexParts) -> ComplexParts:
    return ComplexParts(*map(elementary_lowerings.negative, (value.real, value.imag)))


_OF_PARTS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.abs": absolute,
    "stablehlo.add": _add,
    "stablehlo.divide": _divide,
    "stablehlo.exponential": _exponential,
    "stablehlo.exponential_minus_one": _exponential_minus_one,
    "stablehlo.log": _logarithm,
    "stablehlo.multiply": multiply,
    "stablehlo.negate": _negate,
    "stablehlo.power": _power,
    "stablehlo.rsqrt": _reciprocal_square_root,
    "stablehlo.sign": _sign,
    "stablehlo.sqrt": _square_root,
    "stablehlo.subtract": _subtract,
    "stablehlo.tan": _tangent,
    "stablehlo.tanh": _hyperbolic_tangent,
}
# Rules that know complex numbers themselves.
_OWN = ("stablehlo.compare", "stablehlo.convert", "stablehlo.reduce", "stablehlo.dot_general")


def _complex(op: LoweredOperation) -> ComplexParts:
    return ComplexParts(*op.arrays)


def _real(op: LoweredOperation) -> Any:
    (value,) = op.arrays
    return value.real if isinstance(value, ComplexParts) else value


def _imag(op: LoweredOperation) -> Any:
    (value,) = op.arrays
    return value.imag if isinstance(value, ComplexParts) else jnp.zeros_like(value)


RULES = {
    "stablehlo.complex": LiftingRule(_complex),
    "stablehlo.imag": LiftingRule(_imag),
    "stablehlo.real": LiftingRule(_real),
}
