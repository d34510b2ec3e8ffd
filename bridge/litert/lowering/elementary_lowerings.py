"""Functions of floats, of kernels that LiteRT computes rightly for all of them.

LiteRT has two kernels of most functions: its own, which take those of the C library, and those of
XNNPACK, which takes over by default what it can: arrays of up to six dimensions. XNNPACK's sine and
cosine are wrong for large numbers, its logarithm near 1 and at the greatest floats, its square
roots for great ones, its exponential of NaN is 0, and its negative of 0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftingRule
from bridge.litert.lowering.float_rounding import round_to, with_sign
from bridge.litert.lowering.lowered_operation import LoweredOperation

_XNNPACK_DIMENSIONS = 6


def _not_by_xnnpack(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of each element, computed by LiteRT's own kernel."""

    def compute(value: Any) -> Any:
        shape = np.shape(value)
        added = range(max(0, _XNNPACK_DIMENSIONS + 1 - len(shape)))
        spread = lax.expand_dims(jnp.asarray(value), tuple(added))
        return lax.squeeze(function(spread), tuple(added))

    return compute


sine = _not_by_xnnpack(lax.sin)
cosine = _not_by_xnnpack(lax.cos)
logarithm = _not_by_xnnpack(lax.log)


def exponential(value: Any) -> Any:
    """Return the exponential, and NaN of NaN."""
    return jnp.where(value != value, value, jnp.exp(value))


def square_root(value: Any) -> Any:
    """Return the square root, of a number that is small enough for XNNPACK."""
    return jnp.sqrt(value * np.float32(0.25)) * np.float32(2)


def negative(value: Any) -> Any:
    """Return the number with the other sign, that of 0 as well."""
    return value * np.float32(-1)


def exponential_minus_one(value: Any) -> Any:
    """Return exp(x) - 1, of small numbers by 2 t / (1 - t) with t = tanh(x / 2)."""
    half = jnp.tanh(value * np.float32(0.5))
    small = half * np.float32(2) / (1 - half)
    return jnp.where(jnp.abs(value) < np.float32(0.5), small, exponential(value) - 1)


def logarithm_plus_one(value: Any) -> Any:
    """Return log(1 + x), with what is lost in the sum made good."""
    total = 1 + value
    is_lost = total == 1
    made = logarithm(total) * (value / jnp.where(is_lost, np.float32(1), total - 1))
    made = jnp.where(jnp.abs(total) == np.inf, logarithm(total), made)
    return jnp.where(is_lost, value, made)


def reciprocal_square_root(value: Any) -> Any:
    """Return 1 / sqrt(x)."""
    return np.float32(0.5) / jnp.sqrt(value * np.float32(0.25))


def cubic_root(value: Any) -> Any:
    """Return the cubic root."""
    size = jnp.abs(value)
    root = jnp.power(size, np.float32(1 / 3))
    fine = root - (root - size / (root * root)) / 3  # one step of Newton
    made = jnp.where((size == 0) | (size == np.inf), size, fine)
    return jnp.where(value > 0, made, jnp.where(value < 0, negative(made), value))


def remainder(left: Any, right: Any) -> Any:
    """Return the remainder with the sign of the dividend."""
    size, by = jnp.abs(left), jnp.abs(right)
    # Of numbers of one sign the kernel's remainder is that of XLA.
    made = jnp.where(size < by, size, lax.rem(size, by))
    made = jnp.where((size == np.inf) | (by == 0) | (by != by), np.float32(np.nan), made)
    return jnp.where(left != left, left, with_sign(made, left))


def _of(function: Callable[..., Any]) -> LiftingRule:
    return LiftingRule(lambda op: function(*map(jnp.asarray, op.arrays)), ("result_accuracy",))


def _round_away(value: Any) -> Any:
    size = jnp.abs(value)
    whole = jnp.floor(size)
    near = jnp.where(size - whole >= 0.5, whole + 1, whole)
    return with_sign(jnp.where(size < np.inf, near, size), value)


def _round_even(value: Any) -> Any:
    return with_sign(lax.round(jnp.abs(value), lax.RoundingMethod.TO_NEAREST_EVEN), value)


def _of_kernel(kernel: Callable[[Any], Any], function: Callable[[Any], Any]) -> LiftingRule:
    """Return the rule of a function whose kernel is right but for NaN and signs of zeros."""

    def lower(op: LoweredOperation) -> Any:
        return (function if op.exact else kernel)(jnp.asarray(op.array(0)))

    return LiftingRule(lower, ("result_accuracy",))


def _reduce_precision(op: LoweredOperation) -> Any:
    return round_to(op.array(0), op.integer("exponent_bits"), op.integer("mantissa_bits"))


RULES = {
    "stablehlo.cbrt": _of(cubic_root),
    "stablehlo.cosine": _of(cosine),
    "stablehlo.exponential": _of_kernel(lax.exp, exponential),
    "stablehlo.exponential_minus_one": _of(exponential_minus_one),
    "stablehlo.log": _of(logarithm),
    "stablehlo.log_plus_one": _of(logarithm_plus_one),
    "stablehlo.reduce_precision": LiftingRule(
        _reduce_precision, ("exponent_bits", "mantissa_bits")
    ),
    "stablehlo.round_nearest_afz": _of(_round_away),
    "stablehlo.round_nearest_even": _of_kernel(
        lambda value: lax.round(value, lax.RoundingMethod.TO_NEAREST_EVEN), _round_even
    ),
    "stablehlo.rsqrt": _of(reciprocal_square_root),
    "stablehlo.sine": _of(sine),
    "stablehlo.sqrt": _of(square_root),
    "stablehlo.tan": _of(lambda value: sine(value) / cosine(value)),
}
