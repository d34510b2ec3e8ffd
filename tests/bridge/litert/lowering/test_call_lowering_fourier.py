"""Fourier transforms, decomposed before they are lowered."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax


def waves(*shape):
    return np.sin(np.arange(np.prod(shape)) ** 1.3).astype(np.float32).reshape(shape)


def parts(z):
    return jnp.stack([z.real, z.imag])


@pytest.mark.parametrize("length", [2, 120, 331])
def test_lengths(check, length):
    def compute(x, y):
        z = lax.complex(x, y)
        half = jnp.fft.rfft(x)
        back = [jnp.fft.irfft(z, n=2 * length - 1), jnp.fft.irfft(half, n=length)]
        return [*map(parts, (jnp.fft.fft(z), jnp.fft.ifft(z), half)), *back]

    check(compute, waves(2, length), waves(length, 2).T, relative=2e-5)


def test_several_axes(check):
    def compute(x, y):
        z = lax.complex(x, y)
        several = (jnp.fft.fft2(z), jnp.fft.ifftn(z), jnp.fft.rfftn(x), jnp.fft.ihfft(x))
        return [*map(parts, several), jnp.fft.irfftn(z, s=(3, 4, 6)), jnp.fft.hfft(z)]

    check(compute, waves(3, 4, 5), waves(5, 4, 3).T, relative=2e-5)
