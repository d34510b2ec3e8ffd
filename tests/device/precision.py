"""The distance that a device may have from another one, from dtypes and precisions alone."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.matrix.case import ROUNDING

# The largest error in units in the last place of the float32 functions of CUDA's mathematical
# library (CUDA C++ Programming Guide, "Mathematical Functions"), but for the Bessel functions.
_LIBRARY_ULPS = 11
# A product in TF32 rounds both factors to 10 bits of mantissa. The sum of the magnitudes of what is
# added up is taken to be at most four times the largest result.
_TF32 = 4 * 2.0**-10

_CONTRACTION = re.compile(r"stablehlo\.(dot_general|convolution)\b.*")


def on_accelerator() -> bool:
    """Return whether JAX's default device is none of a CPU."""
    return jax.default_backend() != "cpu"


def rounds_to_tf32(module_text: str) -> bool:
    """Return whether a module multiplies float32 matrices with what an accelerator may round."""
    found = (match[0] for match in _CONTRACTION.finditer(module_text))
    return any("f32" in line and "HIGHEST" not in line for line in found)


def assert_close(
    found: Any, expected: Any, *, relative: float, order: int, tf32: bool, what: str
) -> None:
    """Hold that an array is the expected one, as closely as another device computes it.

    Args:
        found: the array, of whatever library.
        expected: the array of NumPy that it is compared with.
        relative: what two compilers for one CPU may differ by, relative to the largest magnitude.
        order: of the gradient; each one more is one more chain of rounded operations.
        tf32: whether matrices are multiplied in TF32 on accelerators.
        what: names the array in the message.
    """
    found = np.asarray(found)
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    if order:  # a derivative rounds where its function may not
        relative = max(relative, ROUNDING.relative) * (order + 1)
    if on_accelerator() and relative:
        real = np.zeros(0, expected.dtype).real.dtype
        relative += (order + 1) * _LIBRARY_ULPS * float(jnp.finfo(real).eps)
        relative += (order + 1) * _TF32 if tf32 else 0
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    left, right = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(left[~finite], right[~finite], err_msg=what)
    # Cotangents are of magnitude 1, and so may be what cancels in a gradient.
    scale = np.abs(right[finite]).max(initial=1.0 if order else 0.0)
    error = np.abs(left[finite] - right[finite]).max(initial=0.0)
    assert error <= relative * scale, (
        f"{what}: off by {error:.3g} at a largest value of {scale:.3g}, {relative:.2g} allowed"
    )
