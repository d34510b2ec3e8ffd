"""Functions of complex numbers, over the plane and where they are easily lost."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.complex_functions import ComplexParts, multiply, product
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from tests.bridge.core_ops.decompositions.decomposing import check

PLANE = [0.5, -1.2, 3, 0, 2e-3, -4, 1e-9]
REAL, IMAG = np.meshgrid(PLANE, [1.5, 0.3, 0, -2, 1e-4, 3])
Z = (REAL + 1j * IMAG).astype(np.complex64)
NAMES = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "cos", "cosh", "exp", "expm1", "log", "log1p",
    "logistic", "neg", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", NAMES)
def test_functions(name, dtype):
    z = np.where(Z == 0, 1, Z) if name in ("log", "rsqrt", "acosh") else Z
    is_wide = dtype == "complex128"
    by, rtol = [COMPLEX_AS_PAIRS], 2e-14 if is_wide else 2e-5
    check(getattr(lax, name), z.astype(dtype), by=by, rtol=rtol, wide=is_wide)


def test_of_two_numbers():
    by = [COMPLEX_AS_PAIRS]
    check(lambda z: z * z[::-1] - z / (z[::-1] + 5), Z, by=by)
    check(lambda z: (z**2.5, (z + 6) ** (z / 4)), Z, by=by, rtol=2e-5)


def test_large_and_small_numbers():
    z = np.array([1e30 + 1e30j, -1e-30 + 1e-30j, 3e38 + 0j, 1e-38j], np.complex64)
    check(lambda z: (jnp.abs(z), jnp.sqrt(z), z / z, lax.sign(z)), z, by=[COMPLEX_AS_PAIRS])


def test_roots_of_negative_numbers_have_no_real_part():
    z = np.array([-4, -4 - 0j, complex(-4, -0.0), -1e-20], np.complex64)
    check(jnp.sqrt, z, by=[COMPLEX_AS_PAIRS], rtol=1e-7)


def test_products_of_parts():
    z = ComplexParts(Z.real, Z.imag)
    made = multiply(z, product(z, (0,)))
    expected = Z * np.prod(Z, axis=0)
    np.testing.assert_allclose(made.real + 1j * made.imag, expected, rtol=1e-4)
    assert (z.shape, z.dtype) == ((6, 7), np.complex64)
