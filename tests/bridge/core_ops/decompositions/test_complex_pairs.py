"""Complex numbers as pairs: what goes in and out, what stays, and what has no such form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.decompositions.complex_functions import ComplexParts, multiply, product
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.core_ops.decompositions.decomposing import check, contents, decomposed, stored
from xla_call_module.errors import UnsupportedError

PAIRS = [COMPLEX_AS_PAIRS]
REAL, IMAG = np.meshgrid([0.5, -1.2, 3, 0, 2e-3, -4, 1e-9], [1.5, 0.3, 0, -2, 1e-4, 3])
Z = (REAL + 1j * IMAG).astype(np.complex64)
X = REAL.astype(np.float32)
ENDS = np.array(
    [complex(a, b) for a in (0.0, -0.0, np.inf, -np.inf, 2) for b in (0.0, -0.0, np.inf, np.nan)],
    np.complex64,
)


def test_products_of_parts():
    z = ComplexParts(Z.real, Z.imag)
    made = multiply(z, product(z, (0,)))
    np.testing.assert_allclose(made.real + 1j * made.imag, Z * np.prod(Z, axis=0), rtol=1e-4)
    assert (z.shape, z.dtype) == ((6, 7), np.complex64)


def test_zeros_and_infinities_are_those_of_the_plane():
    finite = np.where(np.isnan(ENDS), 1, ENDS)
    check(lambda z: [(3 - 1j) / z, lax.rsqrt(z), jnp.abs(z)], ENDS, by=PAIRS)
    check(lambda z: [z / (2 - 1j), jnp.ones_like(z) / z], finite[:8], by=PAIRS)
    check(lambda z: lax.pow(z, jnp.zeros_like(z)), ENDS, by=PAIRS)


def test_sums_and_products_of_symbolic_sizes():
    specs = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 7"), "complex64")]

    def function(z):
        return jnp.cumsum(z, axis=0), jnp.prod(z, axis=0)

    made = decomposed(function, specs, COMPLEX_AS_PAIRS)
    assert [str(spec) for spec in made.call.results] == ["float32[b,7,2]", "float32[7,2]"]
    found = exported_from_call(made.call).call(stored(made, Z))
    for one, other in zip(found, function(Z), strict=True):
        np.testing.assert_allclose(one, stored(made, other), rtol=1e-4, atol=1e-4)


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
        Z, X, by=PAIRS,
    )  # fmt: skip
    names = (b"chlo.top_k", b"mhlo.topk")  # the second one before JAX 0.10
    assert any(name in made.call.module for name in names)


def test_what_a_loop_passes_on_is_not_carried():
    """The array `x` is seen from outside: the loop carries its number and one array."""

    def function(z, x):
        return lax.fori_loop(0, 3, lambda _, v: (v[0] * v[1], v[1]), (x, x)), z * 1j

    assert "stablehlo.while" in contents(check(function, Z, X, by=PAIRS).call)[0]


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
