"""Fourier transforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

from tests.bridge.tf_operations.checking import check, operations


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_transforms(name):
    with enable_x64(True):
        x = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(name)
        rtol = 1e-5 if name == "float32" else 1e-11
        check(
            lambda x: [
                jnp.fft.fft(x), jnp.fft.ifft2(x), jnp.fft.fftn(x, axes=(1, 2, 3)), jnp.fft.rfft(x),
                jnp.fft.rfft2(x), jnp.fft.irfft(x), jnp.fft.irfft(x, 7), jnp.fft.irfft2(x),
                jnp.fft.fft(x, axis=1),
            ],
            x,
            rtol=rtol,
            of_largest=True,
        )  # fmt: skip


def test_a_transform_is_one_node_for_any_number_of_rows():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), "float32")
    assert operations(jnp.fft.rfft, spec) == ["RFFT"]
