"""Complex numbers, zeros and infinities among them."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.tf_operations.checking import check

_PARTS = (0.0, -0.0, 1.0, -1.5, 3.0)
_FINITE = np.array([complex(*parts) for parts in itertools.product(_PARTS, repeat=2)])


@pytest.fixture(autouse=True)
def _wide():
    with enable_x64(True):
        yield


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_functions_of_complex_numbers(name):
    check(
        lambda x: [
            lax.abs(x), lax.neg(x), lax.sign(x), lax.conj(x), lax.real(x), lax.imag(x), lax.exp(x),
            lax.log(x), lax.sqrt(x), lax.rsqrt(x), lax.sin(x), lax.cos(x), lax.tan(x), lax.tanh(x),
            lax.expm1(x), lax.log1p(x), lax.asin(x), lax.acosh(x), lax.logistic(x), jnp.angle(x),
            jnp.cumsum(x), jnp.sort(x), jnp.sum(x), jnp.prod(x), x**3,
        ],
        _FINITE.astype(name),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_arithmetic_of_complex_numbers(name):
    left, right = (part.reshape(-1).astype(name) for part in np.meshgrid(_FINITE, _FINITE))
    check(
        lambda x, y: [
            x + y,
            x - y,
            x * y,
            x / y,
            lax.pow(x, y),
            x == y,
            lax.complex(x.real, y.imag),
        ],
        left,
        right,
    )


def test_quotients_of_infinities():
    numbers = np.array([complex(np.inf, 1), complex(-2, np.inf), 1 + 2j, 0j], np.complex64)
    left, right = (part.reshape(-1) for part in np.meshgrid(numbers, numbers))
    check(lax.div, left, right)


def test_a_complex_product_and_convolution():
    random = np.random.default_rng(0)
    x, w = (random.normal(size=(4, 5, 6, 2)).astype(np.float32) for _ in range(2))
    a = (x[0, 0] + 1j * w[0, 0]).astype(np.complex64)
    check(lambda a: [a @ a.T, a @ a.conj().T], a, rtol=1e-5)
    image, kernel = (x + 1j * w)[:2], (w + 1j * x)[:2, :2, :2]

    def convolve(image, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    check(convolve, image.astype(np.complex64), kernel.astype(np.complex64), rtol=1e-4)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_signs_and_powers_of_infinities(name):
    parts = (*_PARTS, np.inf, -np.inf, np.nan)
    every = np.array([complex(*pair) for pair in itertools.product(parts, repeat=2)], name)
    exponents = np.array([2, 0.5, -1, 0, -3, 1j, 1 + 1j, 2 - 1j], name)
    bases, powers = (part.reshape(-1) for part in np.meshgrid(every, exponents))
    check(lambda x: lax.sign(x), every)
    check(lambda x, y: [x**y, x**2, x**0.5], bases, powers)
