"""Complex numbers as pairs: every operation on them is what JAX computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from tests.bridge.core_ops.decompositions.decomposing import check, decomposed, stored
from xla_call_module.errors import UnsupportedError

PAIRS = [COMPLEX_AS_PAIRS]
REAL, IMAG = np.meshgrid([0.5, -1.2, 3, 0, 2e-3, -4, 1e-9], [1.5, 0.3, 0, -2, 1e-4, 3])
Z = (REAL + 1j * IMAG).astype(np.complex64)
NOT_ZERO = np.where(Z == 0, 1, Z).astype(np.complex64)


def moved(z):
    spread = jnp.where(z.real > 0, z, 1j)[::-1].T
    return jnp.pad(spread, ((1, 0), (0, 2)), constant_values=1j), z[1:, ::2], z[jnp.array([2, 0])]


def written(z):
    put = lax.dynamic_update_slice(z, z[:1, :2] + 1, (2, 3))
    return put.at[jnp.array([0, 0])].add(z[:2]), put.at[1].set(2j), z.at[0].add(-z[1])


def controlled(z):
    looped = lax.fori_loop(0, 3, lambda _, w: w * z / 4, z)
    chosen = lax.cond(z[0, 0].real > 0, lambda: z + 1, lambda: z * 1j)
    switched = lax.switch(z[0, 0].imag.astype(int), [lambda: z, lambda: -z, lambda: z.conj()])
    return looped, chosen, switched, lax.scan(lambda c, x: (c + x, c * x), z[0], z)


def summed(z):
    return (
        jnp.sum(z, 0),
        jnp.prod(z, axis=1),
        jnp.cumsum(z, 0),
        jnp.mean(z),
        z.sum(where=z.real > 0),
    )


def multiplied(z):
    kernel = jnp.ones((3,), np.complex64) * (1 - 2j)
    return z @ z.T, jnp.einsum("ij,ij->i", z, z), jnp.convolve(z[0], kernel)


def parts(z):
    x = z.real
    return (
        lax.complex(x, -x),
        x + z,
        z.imag,
        jnp.angle(NOT_ZERO),
        x.astype(z.dtype),
        z == z.T.T,
        z != 3,
    )


def sorted_(z):
    return jnp.sort(z, 0), jnp.argsort(z, 1), lax.sort((z, z.imag), num_keys=1)


def differentiated(z):
    return jax.grad(lambda z: jnp.sum(jnp.abs(jnp.exp(z * 1j)) ** 2 + jnp.sin(z).real))(z)


@pytest.mark.parametrize(
    "function",
    [moved, written, controlled, summed, multiplied, parts, sorted_, differentiated],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_operations(function, dtype):
    check(function, Z.astype(dtype), by=PAIRS, rtol=2e-6, wide=dtype == "complex128")


def test_arrays_that_are_constants():
    check(lambda x: (x * Z, jnp.sum(Z) * x, Z), REAL.astype(np.float32), by=PAIRS)


def test_arguments_and_results_are_pairs_of_symbolic_sizes():
    shape = jax.export.symbolic_shape("b, 3")
    made = decomposed(
        lambda z, x: (z * x, jnp.abs(z)),
        [jax.ShapeDtypeStruct(shape, "complex64"), jax.ShapeDtypeStruct((3,), "float32")],
        COMPLEX_AS_PAIRS,
    )
    assert [str(spec) for spec in made.call.args] == ["float32[b,3,2]", "float32[3]"]
    assert [str(spec) for spec in made.call.results] == ["float32[b,3,2]", "float32[b,3]"]
    np.testing.assert_array_equal(stored(made, [1 + 2j]), [[1, 2]])


def test_what_stays_is_as_it_was():
    """Operations on real numbers beside complex ones, those that JAX has composites of included."""
    made = check(
        lambda z, x: (z * 2, lax.asin(x / 9), lax.top_k(x, 2), jnp.take(x, jnp.arange(2), axis=1)),
        Z,
        REAL.astype(np.float32),
        by=PAIRS,
    )
    names = (b"chlo.top_k", b"mhlo.topk")  # the second one before JAX 0.10
    assert any(name in made.call.module for name in names)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("reduce", lambda z: lax.reduce(z, np.complex64(0), lambda a, b: a * b + 1, [0])),
        ("scatter", lambda z: z.at[jnp.array([0, 0])].multiply(2j)),
    ],
)
def test_what_is_no_operation_on_parts_is_refused(name, function):
    place = rf"{name} at .*test_complex_pairs.py:\d+.*imaginary"
    with pytest.raises(UnsupportedError, match=place):
        decomposed(function, [Z], COMPLEX_AS_PAIRS)
