"""Whether TensorFlow's numbers are JAX's, within what their dtype allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

__all__ = [
    "Tolerance",
    "describe_difference",
    "describe_overflow",
    "greatest_error",
    "is_finite",
    "is_nan",
    "largest",
]

# Of the largest number of an array. Two versions of XLA round, fuse and approximate differently,
# and each order of differentiation does it again.
_USUAL = {"float64": 1e-10, "float32": 1e-4, "float16": 2**-7, "bfloat16": 2**-4}
_USUAL_FLOAT8 = 2**-2


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What numbers may differ by: `atol + rtol * abs(expected)`, as in `numpy.testing`.

    Attributes:
        rtol: None for what is usual for the dtype.
        atol: None for `rtol` times the largest number of the array, and rounding in larger ones.
    """

    rtol: float | None = None
    atol: float | None = None

    def of(self, expected: Any, scale: float) -> tuple[float, float]:
        """`rtol` and `atol` for one array.

        Args:
            expected: the array.
            scale: the largest number that it was computed with.
        """
        real = np.zeros((), expected.dtype).real.dtype
        epsilon = float(jnp.finfo(real).eps)  # type: ignore[no-untyped-call]
        rtol = _USUAL.get(real.name, _USUAL_FLOAT8) if self.rtol is None else self.rtol
        if self.atol is not None:
            return rtol, self.atol
        return rtol, rtol * largest([expected]) + 4 * epsilon * scale


def largest(arrays: Iterable[Any]) -> float:
    """The largest finite magnitude in floating and complex arrays; 0 where there is none."""
    magnitudes = [
        np.abs(_wide(array)) for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)
    ]
    return max((float(x[np.isfinite(x)].max(initial=0)) for x in magnitudes), default=0.0)


def describe_difference(
    found: Any, expected: Any, tolerance: Tolerance, *, scale: float = 0.0
) -> str | None:
    """What a message says of the worst element; None where the arrays agree.

    Args:
        found: TensorFlow's numbers.
        expected: JAX's.
        tolerance: what they may differ by; of no use for integers and booleans.
        scale: the largest number that they were computed with.
    """
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"is {_aval(found)}; JAX has {_aval(expected)}."
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        rtol, atol = tolerance.of(expected, scale)
        wide, wanted = _wide(found), _wide(expected)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(wide - wanted)
        # Not a number, or an infinity, on one side only is the worst there is.
        error = np.where(np.isnan(error), np.inf, error)
        error = np.where((wide == wanted) | (np.isnan(wide) & np.isnan(wanted)), 0, error)
        magnitude = np.where(np.isfinite(wanted), np.abs(wanted), 0)
        excess = error - (atol + rtol * magnitude)
    else:
        rtol = atol = 0.0
        excess = np.asarray(found != expected, float)
    wrong = excess > 0
    if not wrong.any():
        return None
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    index = f"at index {tuple(map(int, worst))} " if worst else ""
    text = f"{index}is {found[worst]}; JAX has {expected[worst]}."
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        allowed = atol + rtol * magnitude[worst]
        text += (
            f" They differ by {error[worst]:.3g}, and {allowed:.3g} is allowed "
            f"(rtol={rtol:.3g}, atol={atol:.3g})."
        )
    return f"{text} {int(wrong.sum())} of {wrong.size} elements of {_aval(expected)} differ."


def describe_overflow(found: Any, expected: Any) -> str | None:
    """What a message says where one array is finite and the other is not; None if nowhere.

    Of numbers near the largest that there are it is all that two orders of a sum have in common.
    """
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"is {_aval(found)}; JAX has {_aval(expected)}."
    wrong = np.isfinite(_wide(found)) != np.isfinite(_wide(expected))
    if not wrong.any():
        return None
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return (
        f"at index {tuple(map(int, first))} is {found[first]}; JAX has {expected[first]}. "
        f"{int(wrong.sum())} of {wrong.size} elements are finite on one side alone."
    )


def greatest_error(found: Any, expected: Any) -> float:
    """The greatest difference of two arrays of one shape, as a part of the largest number expected.

    Where one is not a number and the other is, or they are different infinities, it is infinite;
    where no number is expected but zero, it is absolute.
    """
    wide, wanted = _wide(found), _wide(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(wide - wanted)
    error = np.where((wide == wanted) | (np.isnan(wide) & np.isnan(wanted)), 0, error)
    error = np.where(np.isnan(error), np.inf, error)
    finite = np.abs(wanted[np.isfinite(wanted)])
    return float(error.max(initial=0)) / (float(finite.max(initial=0)) or 1.0)


def is_finite(array: Any) -> bool:
    """Whether all of an array is finite."""
    return bool(np.isfinite(_wide(array)).all())


def is_nan(array: Any) -> Any:
    """Where an array is not a number."""
    return np.isnan(_wide(array))


def _wide(array: Any) -> Any:
    """As float64 or complex128, which hold the numbers of every dtype."""
    wide = np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64
    return np.array(array, wide, ndmin=0)


def _aval(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
