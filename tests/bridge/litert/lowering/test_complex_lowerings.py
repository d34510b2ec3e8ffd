"""Complex numbers inside of a model, as pairs of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

REAL, IMAG = (
    part.ravel().astype(np.float32)
    for part in np.meshgrid([0.5, -1.2, 3, 0, 2e-3, -4, 1e-9], [1.5, 0.3, 0, -2, 1e-4, 3])
)
_FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "cos", "cosh", "exp", "expm1",
    "log", "log1p", "logistic", "neg", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def parts(z):
    return [z.real, z.imag] if jnp.iscomplexobj(z) else [z]


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(lax, name) for name in _FUNCTIONS),
        jnp.angle,
        jnp.isfinite,
        lambda z: z * z[::-1] - z / (z[::-1] + 5),
        lambda z: z**2.5,
        lambda z: jnp.prod(z.reshape(6, 7), axis=0),
        lambda z: jnp.where(z.real > 0, z, 1j),
        lambda z: jnp.cumsum(z[:7]) + jnp.mean(z),
        lambda z: z.reshape(6, 7) @ z.reshape(7, 6),
        lambda z: lax.fori_loop(0, 3, lambda _, w: w * z / 4, z),
    ],
    ids=[*_FUNCTIONS, *map(str, range(9))],
)
def test_functions(check, function):
    def compute(x, y):
        return jnp.stack(parts(function(lax.complex(x, y))))

    keep = (
        (REAL != 0) | (IMAG != 0) if function in (lax.log, lax.rsqrt) else np.full(len(REAL), True)
    )
    check(compute, REAL[keep], IMAG[keep], relative=2e-5)


def test_gradients_of_complex_numbers(check):
    def loss(x, y):
        z = lax.complex(x, y)
        return jnp.sum(jnp.exp(z).real * jnp.sin(z).imag)

    check(jax.grad(loss, argnums=(0, 1)), REAL, IMAG, relative=2e-5)
