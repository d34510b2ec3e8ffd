"""Fourier transforms as products of matrices: in pairs, of unknown sizes, and of large primes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.core._jax import has_symbolic_composites
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from bridge.core_ops.transform_composite import TRANSFORM
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.core_ops.decompositions.decomposing import check, decomposed

BY = [FOURIER_AS_PRODUCTS]


def waves(*shape):
    return np.sin(np.arange(np.prod(shape)) ** 1.3).astype(np.float32).reshape(shape)


def test_transforms_stay_composites_of_pairs():
    shape = jax.export.symbolic_shape("b, 8") if has_symbolic_composites() else (2, 8)
    spec = jax.ShapeDtypeStruct(shape, "complex64")
    made = decomposed(lambda z: jnp.fft.ifft(jnp.fft.fft(z)), [spec], *BY, COMPLEX_AS_PAIRS)
    assert TRANSFORM.encode() in made.call.module


@pytest.mark.parametrize("length", [8, 131])
def test_transforms_of_known_sizes_beside_unknown_ones(length):
    """Also where the argument of an unknown size goes into no operation."""
    z = (waves(2, length) + 1j * waves(length, 2).T).astype(np.complex64)
    for function in (lambda z, x: (jnp.fft.ifft(z), x + 1), lambda z, _: (jnp.fft.fft(z),)):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), "float32")
        made = decomposed(function, [z, x], *BY)
        found = exported_from_call(made.call).call(z, np.ones(3, np.float32))
        np.testing.assert_allclose(found[0], function(z, 1.0)[0], rtol=0, atol=1e-5 * length)


def test_a_large_prime_is_a_convolution():
    """Its error is that of float32, and no matrix has as many elements as the square."""
    made = check(jnp.fft.rfft, waves(4099), by=BY, rtol=2e-6)
    assert len(made.call.module) < 1 << 20
