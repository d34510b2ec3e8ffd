"""Reductions that begin with a number, lifted: what XLA makes of it is what it makes of the module.

XLA for CPUs takes such a number in once for each part of a long dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.lifting.lifted import assert_same, lift

_OPERATIONS = {"add": lax.add, "multiply": lax.mul, "maximum": lax.max}
_REDUCTIONS = [
    lambda x, start, combine: lax.reduce(x, start, combine, (0,)),
    lambda x, start, combine: lax.reduce_window(x, start, combine, (70, 1), (1, 1), "SAME"),
    lambda x, start, combine: lax.reduce_window(x, start, combine, (100, 1), (1, 1), "VALID"),
]


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_is_the_same_program(name, dtype):
    numbers = np.random.RandomState(0).uniform(0.9, 1.1, (100, 6))
    rows, start = (
        jnp.asarray(numbers * (3 if dtype == "int32" else 1), dtype),
        jnp.asarray(3, dtype),
    )

    def with_argument(x, start):
        return [reduced(x, start, _OPERATIONS[name]) for reduced in _REDUCTIONS]

    def with_constant(x):
        return with_argument(x, np.array(3, x.dtype))

    for function, args in ((with_constant, (rows,)), (with_argument, (rows, start))):
        exported = export.export(jax.jit(function))(*args)
        assert_same(jax.jit(bridge.to_jax(exported))(*args), jax.jit(exported.call)(*args))


def test_one_of_integers_is_mapped_over_both():
    rows, starts = jnp.arange(24, dtype=jnp.int32).reshape(2, 3, 4), jnp.array([5, 7], jnp.int32)

    def total(x, start):
        return lax.reduce(x, start, lax.bitwise_xor, (0,))

    lifted = lift(total, rows[0], starts[0])
    expected = np.array([[total(x, start) for start in starts] for x in rows])
    assert_same(jax.vmap(jax.vmap(lifted, (None, 0)), (0, None))(rows, starts), expected)
    over_rows_last = jax.vmap(jax.vmap(lifted, (0, None)), (None, 0))(rows, starts)
    assert_same(over_rows_last, np.swapaxes(expected, 0, 1))


@pytest.mark.parametrize("is_windows", [False, True])
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_derivatives_are_those_of_the_sum_or_product(name, is_windows):
    """JAX itself has no derivative by the number that they begin with."""
    rows, start = jnp.linspace(0.9, 1.1, 54, dtype=jnp.float32).reshape(9, 6), jnp.float32(1.5)

    def reduced(x, start):
        return _REDUCTIONS[is_windows](x, start, _OPERATIONS[name])

    def expected(x, start):
        total, combine = {"add": (jnp.sum, jnp.add), "multiply": (jnp.prod, jnp.multiply)}[name]
        return combine(total(x, axis=0), start)

    lifted = lift(reduced, rows, start)
    # JAX does not transpose the product of windows. Each window has all of the rows.
    backwards = [] if is_windows and name == "multiply" else [jax.jacrev]
    for transform in (jax.jacfwd, *backwards):
        wanted = transform(expected, argnums=(0, 1))(rows, start)
        found = transform(lambda x, s: lifted(x, s)[4] if is_windows else lifted(x, s), (0, 1))
        assert_same(found(rows, start), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("extreme", "share"), [(jnp.minimum, [0.5, 0, 0, 1]), (jnp.maximum, [0.5, 1, 0, 0])]
)
def test_the_extreme_of_complex_numbers_moves_with_the_one_that_it_is(extreme, share):
    """JAX said so until it had no derivative of it; equal numbers have equal shares."""
    x, y = jnp.array([[1 + 2j, 1 + 2j, jnp.nan + 0j, 3 - 1j], [1 + 2j, 1 - 2j, 1 + 0j, 4 + 1j]])
    of_x, of_y = x.at[2].set(1), -1j * y
    value, tangent = jax.jvp(lift(extreme, x, y), (x, y), (of_x, of_y))
    np.testing.assert_array_equal(value, extreme(x, y))
    np.testing.assert_array_equal(tangent, of_x * np.array(share) + of_y * (1 - np.array(share)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.max(x, 1), lambda x: jnp.min(x), lambda x: x.at[0].max(x[1]),
        lambda x: x.at[:, jnp.array([0, 0, 2])].min(x[::-1]),
    ],
    ids=["max", "min of all", "scatter", "scatter to the same place"],
)  # fmt: skip
def test_extremes_of_complex_numbers_have_derivatives(function):
    x = jnp.array([[1 + 2j, 3 - 1j, 3 + 1j], [0, 2j, -1]])
    lifted = lift(function, x)
    assert_same(*(jax.jvp(f, (x,), (2 * x + 1,)) for f in (lifted, function)))
    assert_same(*(pull(result) for result, pull in (jax.vjp(f, x) for f in (lifted, function))))
