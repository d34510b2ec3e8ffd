"""`jax.numpy.fft` and `jax.image`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.image import ResizeMethod

from tests.matrix.case import Case, complexes, family, floats

_COMPLEX = {
    "fft2": jnp.fft.fft2,
    "fftn": lambda z: jnp.fft.fftn(z, axes=(0,), norm="ortho"),
    "hfft": lambda z: jnp.fft.hfft(z, axis=0),
}
_REAL = {
    "ihfft": jnp.fft.ihfft,
    "rfftn": lambda x: jnp.fft.irfftn(jnp.fft.rfftn(x) * 2, s=x.shape),
    "frequencies": lambda x: jnp.fft.ifftshift(x) * jnp.fft.fftfreq(6) + jnp.fft.rfftfreq(10),
}
_IMAGES = {
    "resize_nearest": lambda x: jax.image.resize(x, (7, 2, 1), ResizeMethod.NEAREST),
    "resize_lanczos": lambda x: jax.image.resize(x, (3, 6, 1), ResizeMethod.LANCZOS3),
    "scale_and_translate": lambda x: jax.image.scale_and_translate(
        x, (3, 3, 1), (0, 1), np.float32([0.8, 1.2]), np.float32([0.5, -0.3]), "linear"
    ),
}


def _resize(x: Any) -> Any:
    return jax.image.resize(x, (5, 3, 1), "bilinear"), jax.image.resize(x, (2, 6, 1), "cubic")


def _fft(z: Any) -> Any:
    return jnp.fft.fft(z), jnp.fft.ifft2(z)


def _rfft(x: Any) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(x) * 2), jnp.fft.fftshift(jnp.fft.rfft2(x))


CASES = (
    *family(_COMPLEX, complexes(4, 6)),
    *family(_REAL, floats(4, 6)),
    *family(_IMAGES, floats(4, 4, 1)),
    Case("resize", _resize, (floats(4, 4, 1),)),
    Case("fft", _fft, (complexes(4, 6),)),
    Case("rfft", _rfft, (floats(4, 6),)),
)
