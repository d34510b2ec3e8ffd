"""Floats rounded to formats of few bits, by arithmetic of float64 alone."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core.narrow_types import NarrowFloat

_PRECISION = 53  # bits of a float64, with the one that is not stored


def round_to(value: Any, narrow: NarrowFloat) -> Any:
    """Return the nearest number of a float type, and of two the even one, in float64.

    The difference `c * x - (c * x - x)` with `c = 2**k + 1` is x without the last k bits of a
    float64 (T. J. Dekker, A floating-point technique for extending the available precision, 1971),
    rounded as `c * x` is. The numbers below the least that has all bits are multiples of one.
    """
    exact = lax.convert_element_type(value, np.float64)
    size = jnp.minimum(jnp.abs(exact), 4 * narrow.greatest)  # more is as that is
    product = size * (2.0 ** (_PRECISION - 1 - narrow.fraction_bits) + 1)
    rounded = product - (product - size)
    steps = lax.round(size * (1 / narrow.least), lax.RoundingMethod.TO_NEAREST_EVEN)
    is_small = size < narrow.least * 2.0**narrow.fraction_bits
    rounded = jnp.where(is_small, steps * narrow.least, rounded)
    rounded = jnp.where(rounded > narrow.greatest, narrow.overflow, rounded)
    if not narrow.is_signed:
        return _positive(exact, rounded, narrow)
    # Where there are several NaNs they keep their signs.
    nan = narrow.converted_nan if narrow.bits_of_nan is not None else exact
    return _with_sign(exact, jnp.where(exact != exact, nan, rounded), narrow)


def _with_sign(exact: Any, size: Any, narrow: NarrowFloat) -> Any:
    """Return sizes with the signs of numbers, by a product, in which a -0 has a sign."""
    is_negative = exact < 0
    if narrow.has_negative_zero:
        is_negative = is_negative | (1 / exact < 0)
    signed = size * jnp.where(is_negative, -1.0, 1.0)
    return signed if narrow.has_negative_zero else jnp.where(size == 0, 0.0, signed)


def _positive(exact: Any, rounded: Any, narrow: NarrowFloat) -> Any:
    """Return the value in a type of powers of two, without zero; above the least comes the next.

    XLA and ml_dtypes alike give that where float32 has numbers of fewer bits.
    """
    bound = jnp.where(exact > narrow.least, 2 * narrow.least, narrow.least)
    return jnp.where(exact > 0, jnp.maximum(rounded, bound), narrow.converted_nan)
