"""Derivatives of functions that `bridge.to_jax` lifted were other ones than those of JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.scipy import special, stats

import bridge

INF = np.inf
X = np.float32([0.3, -1, 2])
SINGULAR = np.float32([[1, 2], [2, 4]])


def _switched(x, i):
    branches = [jnp.sin, lambda x: jnp.sqrt(x - 1), jnp.log]
    return jax.vmap(lambda x, i: lax.switch(i, branches, x))(x, i)


def _whole(x):
    return jnp.asarray(x, jnp.float32)


# Each with the points where it was wrong.
YEAR_2026 = {
    "logit at 0 and 1": (special.logit, [0, 0.5, 1]),
    "entr at 0": (special.entr, [0, 0.5, -1]),
    "expi at 0": (special.expi, [0, 1, -1]),
    "log_ndtr far out": (special.log_ndtr, [-60, -5, 0, 9]),
    "erfcinv": (lambda x: special.erfinv(1 - x), [0.5, 1, 1.999]),
    "sici at 0": (lambda x: special.expi(-x), [0.5, 1]),
    "polygamma": (lambda x: special.polygamma(1, x), [0.5, 3]),
    "relu6 at its corners": (jax.nn.relu6, [0, 6, 3]),
    "relu at 0": (jax.nn.relu, [0, -0.0, 1]),
    "silu at infinity": (jax.nn.silu, [-INF, 0, 100]),
    "gammainc": (lambda x: special.gammainc(2.5, x), [0.5, 3]),
    "betainc": (lambda x: special.betainc(2.0, 3.0, x), [0.25, 0.75]),
    "xlogy at 0": (lambda x: special.xlogy(x, 0.5), [0, 1]),
    "xlogy with a scalar": (lambda x: special.xlogy(0.0, x), [0, 2]),
    "xlog1py at 0": (lambda x: special.xlog1py(x, x), [0, 1]),
    "logaddexp of infinities": (lambda x: jnp.logaddexp(x, x), [-INF, INF, 0]),
    "a mass of Poisson at 0": (lambda x: stats.poisson.logpmf(0, x), [0, 1]),
    "powers of integers at 0": (lambda x: x**2 + jnp.power(x, 3), [0, -1, 2]),
    "sinc at 0": (jnp.sinc, [0, 0.5]),
    "frexp": (lambda x: jnp.frexp(x)[0], [3, -0.5]),
    "nextafter": (lambda x: lax.nextafter(x, _whole(9)), [0, 1]),
    "sqrt of a sum that is 0": (lambda x: jnp.sqrt((x * x).sum()), [0, 0]),
    "the norm of zeros": (jnp.linalg.norm, [0, 0]),
    "clip at its bounds": (lambda x: jnp.clip(x, -1, 1), [-1, 1, 0]),
    "extremes that are equal": (lambda x: jnp.maximum(x, 0) + x.max(), [0, 1, 1]),
    "where beside what is not finite": (lambda x: jnp.where(x > 0, jnp.log(x), 0), [0, 1, -1]),
    "a switch for each element": (lambda x: _switched(x, np.arange(3)), [1, 1, 0]),
    "det of a singular matrix": (jnp.linalg.det, SINGULAR),
    "slogdet": (lambda a: jnp.linalg.slogdet(a + jnp.eye(2))[1], SINGULAR),
    "pinv": (jnp.linalg.pinv, SINGULAR + np.eye(2, dtype="f")),
    "a scan": (lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x)[1], [2, 0, 3]),
    "a checkpoint": (jax.checkpoint(lambda x: jnp.sin(x) ** 2), [0, 1]),
}


@pytest.mark.parametrize("name", YEAR_2026)
def test_a_lifted_function_has_the_derivatives_of_jax(name):
    function, points = YEAR_2026[name]
    x = np.asarray(points, np.float32)
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    for derivative in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]):
        found, wanted = (derivative(lambda x, f=f: f(x).sum())(x) for f in (lifted, function))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(lifted)(np.stack([x, x])), np.stack([function(x)] * 2), rtol=1e-5, atol=1e-6
    )
