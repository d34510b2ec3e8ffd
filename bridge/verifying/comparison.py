"""The comparison of TensorFlow's numbers with JAX's, within a tolerance for each dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from xla_call_module.analyses.dependence import epsilon_of
from xla_call_module.dimensions import aval_text

# Relative to the largest number of an array. Two versions of XLA round, fuse and approximate
# differently, and each order of differentiation does it again.
_RTOL = {"float64": 1e-10, "float32": 1e-4, "float16": 2**-7, "bfloat16": 2**-4}
_RTOL_FLOAT8 = 2**-2


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest allowed difference: `atol + rtol * abs(expected)`, as in `numpy.testing`.

    Attributes:
        rtol: the relative tolerance; None for the usual one of the least precise dtype that the
            array was computed with.
        atol: the absolute tolerance; None for `rtol` times the largest number of the array, plus
            the rounding of larger numbers that it was computed with.
    """

    rtol: float | None = None
    atol: float | None = None

    def of(
        self, expected: Any, scale: float, precisions: Iterable[str] = ()
    ) -> tuple[float, float]:
        """Return `rtol` and `atol` for one array.

        Args:
            expected: the expected array.
            scale: the largest number that it was computed with.
            precisions: the names of dtypes of floats that it was computed with, of which the least
                precise one decides.
        """
        names = [np.zeros((), expected.dtype).real.dtype.name, *precisions]
        epsilon = max(map(epsilon_of, names))
        usual = max(_RTOL.get(name, _RTOL_FLOAT8) for name in names)
        rtol = usual if self.rtol is None else self.rtol
        if self.atol is not None:
            return rtol, self.atol
        return rtol, rtol * largest([expected]) + 4 * epsilon * scale


def largest(arrays: Iterable[Any]) -> float:
    """Return the largest finite magnitude in floating and complex arrays; 0 where there is none."""
    magnitudes = [
        np.abs(_wide(array)) for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)
    ]
    return max((float(x[np.isfinite(x)].max(initial=0)) for x in magnitudes), default=0.0)


def describe_difference(
    actual: Any,
    expected: Any,
    tolerance: Tolerance,
    *,
    scale: float = 0.0,
    precisions: Iterable[str] = (),
) -> str | None:
    """Return the text about the worst element; None where the arrays agree."""
    if text := _other_aval(actual, expected):
        return text
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        rtol, atol = tolerance.of(expected, scale, precisions)
        error, wanted = _errors(actual, expected), _wide(expected)
        magnitude = np.where(np.isfinite(wanted), np.abs(wanted), 0)
        excess = error - (atol + rtol * magnitude)
    else:
        rtol = atol = 0.0
        excess = np.asarray(actual != expected, float)
    wrong = excess > 0
    if not wrong.any():
        return None
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    index = f"at index {tuple(map(int, worst))} " if worst else ""
    text = f"{index}is {actual[worst]}; JAX has {expected[worst]}."
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        allowed = atol + rtol * magnitude[worst]
        text += (
            f" They differ by {error[worst]:.3g}, and {allowed:.3g} is allowed "
            f"(rtol={rtol:.3g}, atol={atol:.3g})."
        )
    aval = aval_text(expected.dtype, expected.shape)
    return f"{text} {int(wrong.sum())} of {wrong.size} elements of {aval} differ."


def describe_overflow(actual: Any, expected: Any) -> str | None:
    """Return the text about elements that are finite in one array only; None if there are none.

    Sums of numbers near the largest of the dtype depend on their order in everything else.
    """
    if text := _other_aval(actual, expected):
        return text
    wrong = np.isfinite(_wide(actual)) != np.isfinite(_wide(expected))
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return (
        f"at index {tuple(map(int, first))} is {actual[first]}; JAX has {expected[first]}. "
        f"{int(wrong.sum())} of {wrong.size} elements are finite on one side alone."
    )


def greatest_error(actual: Any, expected: Any) -> float:
    """Return the greatest difference of two arrays, relative to the largest expected number.

    The arrays have the same shape. Where only one element is NaN, or they are different infinities,
    the result is infinite; where all expected numbers are zero, it is absolute.
    """
    wanted = _wide(expected)
    finite = np.abs(wanted[np.isfinite(wanted)])
    error = _errors(actual, expected)
    return float(error.max(initial=0)) / (float(finite.max(initial=0)) or 1.0)


def _errors(actual: Any, expected: Any) -> Any:
    """Return the difference of each element, infinite where only one of the two is a number."""
    wide, wanted = _wide(actual), _wide(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(wide - wanted)
    error = np.where(np.isnan(error), np.inf, error)
    return np.where((wide == wanted) | (np.isnan(wide) & np.isnan(wanted)), 0, error)


def is_finite(array: Any) -> bool:
    """Return whether all elements of an array are finite."""
    return bool(np.isfinite(_wide(array)).all())


def has_infinity(array: Any) -> bool:
    """Return whether an element of an array is infinite."""
    return bool(np.isinf(_wide(array)).any())


def is_special(array: Any) -> Any:
    """Return a mask of the elements that are infinite or NaN."""
    return ~np.isfinite(_wide(array))


def is_nan(array: Any) -> Any:
    """Return a mask of the elements that are NaN."""
    return np.isnan(_wide(array))


def _wide(array: Any) -> Any:
    """Return an array as float64 or complex128, which represent the numbers of every dtype."""
    wide = np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64
    return np.array(array, wide, ndmin=0)


def _other_aval(actual: Any, expected: Any) -> str | None:
    """Return the text about another dtype or shape; None where they are the same."""
    avals = [aval_text(array.dtype, array.shape) for array in (actual, expected)]
    return None if avals[0] == avals[1] else f"is {avals[0]}; JAX has {avals[1]}."
