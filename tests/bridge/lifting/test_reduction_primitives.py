"""Reductions that begin with a number, lifted: what XLA makes of it is what it makes of the module.

XLA for CPUs takes such a number in once for each part of a long dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, export, lax

import bridge

_OPERATIONS = {"add": lax.add, "multiply": lax.mul, "maximum": lax.max}
_REDUCTIONS = {
    "reduce": lambda x, start, combine: lax.reduce(x, start, combine, (0,)),
    "windows": lambda x, start, combine: lax.reduce_window(
        x, start, combine, (70, 1), (1, 1), "SAME"
    ),
    "one window": lambda x, start, combine: lax.reduce_window(
        x, start, combine, (100, 1), (1, 1), "VALID"
    ),
}


def _lifted(function, *args):
    return bridge.to_jax(export.export(jax.jit(function))(*args))


def _rows(dtype):
    numbers = np.random.RandomState(0).uniform(0.9, 1.1, (100, 6))
    return jnp.asarray(numbers * (3 if dtype == "int32" else 1), dtype)


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("reduction", _REDUCTIONS)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_is_the_same_program(name, reduction, dtype):
    rows, start = _rows(dtype), np.array(3, jnp.dtype(dtype))

    def with_constant(x):
        return _REDUCTIONS[reduction](x, start, _OPERATIONS[name])

    def with_argument(x, start):
        return _REDUCTIONS[reduction](x, start, _OPERATIONS[name])

    for function, args in ((with_constant, (rows,)), (with_argument, (rows, start))):
        exported = export.export(jax.jit(function))(*args)
        expected = np.asarray(jax.jit(exported.call)(*args))
        assert np.asarray(jax.jit(bridge.to_jax(exported))(*args)).tobytes() == expected.tobytes()


def test_one_of_integers_is_mapped_over_both():
    rows = jnp.arange(24, dtype=jnp.int32).reshape(2, 3, 4)
    starts = jnp.array([5, 7], jnp.int32)

    def total(x, start):
        return lax.reduce(x, start, lax.bitwise_xor, (0,))

    lifted = _lifted(total, rows[0], starts[0])
    expected = [[total(x, start) for start in starts] for x in rows]
    over_both = jax.vmap(jax.vmap(lifted, (None, 0)), (0, None))(rows, starts)
    np.testing.assert_array_equal(over_both, expected)
    over_rows_last = jax.vmap(jax.vmap(lifted, (0, None)), (None, 0))(rows, starts)
    np.testing.assert_array_equal(over_rows_last, np.swapaxes(expected, 0, 1))


@pytest.mark.parametrize("reduction", ["reduce", "windows"])
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_derivatives_are_those_of_the_sum_or_product(name, reduction):
    rows, start = _rows("float32")[:9], jnp.float32(1.5)

    def reduced(x, start):
        return _REDUCTIONS[reduction](x, start, _OPERATIONS[name])

    def expected(x, start):
        windows = {"add": jnp.sum, "multiply": jnp.prod}[name]
        combine = {"add": jnp.add, "multiply": jnp.multiply}[name]
        return combine(windows(x, axis=0), start)

    lifted = _lifted(reduced, rows, start)
    # JAX does not transpose the product of windows.
    backwards = [] if (reduction, name) == ("windows", "multiply") else [jax.jacrev]
    for transform in (jax.jacfwd, *backwards):
        wanted = transform(expected, argnums=(0, 1))(rows, start)
        found = transform(
            # Each window has all of the rows, and the middle one no padding.
            lambda x, s: lifted(x, s)[4] if reduction == "windows" else lifted(x, s),
            argnums=(0, 1),
        )(rows, start)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.max(x, 1),
        lambda x: jnp.min(x),
        lambda x: x.at[0].max(x[1]),
        lambda x: x.at[:, jnp.array([0, 0, 2])].min(x[::-1]),
    ],
    ids=["max", "min of all", "scatter", "scatter to the same place"],
)
def test_extremes_of_complex_numbers_have_derivatives(function, dtype):
    with enable_x64(dtype == "complex128"):
        x = jnp.array([[1 + 2j, 3 - 1j, 3 + 1j], [0, 2j, -1]], dtype)
        lifted = _lifted(function, x)
        jvps = (jax.jvp(f, (x,), (2 * x + 1,)) for f in (function, lifted))
        np.testing.assert_array_equal(*map(jnp.concatenate, _raveled(jvps)))
        vjps = (jax.vjp(f, x) for f in (function, lifted))
        np.testing.assert_array_equal(*(pull(result)[0] for result, pull in vjps))


def _raveled(trees):
    return [[leaf.ravel() for leaf in jax.tree.leaves(tree)] for tree in trees]
