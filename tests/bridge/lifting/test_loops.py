"""Loops that count are scans again, over the arrays that the original scans over."""

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

from tests.bridge.lifting.lifted import assert_same, equations, lift, names, symbolic

X = jnp.linspace(-1.0, 1.0, 28, dtype=jnp.float32).reshape(7, 4)


def _reads_backwards(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x, reverse=True)


def _both_ways(x):
    forwards, _ = lax.scan(lambda c, row: (c * 0.5 + row, None), x[0], x)
    return lax.scan(lambda c, row: (c + forwards * row, row.sum()), x[1], x, reverse=True)


def _nested(x):
    def outer(c, row):
        inner, rows = lax.scan(lambda d, e: (d * 0.9 + e, d), c, row)
        return inner, rows.sum() + row

    return lax.scan(outer, jnp.float32(1.0), x)


def _several(x):
    def step(carry, row):
        (a, b), n = carry
        return ((a + row["x"], b * row["y"].sum()), n + 1), {"a": a, "n": n}

    return lax.scan(step, ((x[0], x.sum()), 0), {"x": x, "y": x + 1})


def _reads_what_it_writes(x):
    return lax.fori_loop(1, 7, lambda i, rows: rows.at[i].set(rows[i - 1] * 0.5 + x[i]), x)


def _remat(x):
    return lax.scan(jax.checkpoint(lambda c, row: (jnp.tanh(c + row), jnp.exp(c))), x[0], x)


# Each function, with the number of scans in it.
FUNCTIONS = {
    "backwards": (_reads_backwards, 1),
    "batched": (lambda x: jax.vmap(_reads_backwards)(jnp.stack([x, x + 1])), 1),
    "both ways": (_both_ways, 2),
    "counts": (lambda x: lax.fori_loop(2, 9, lambda i, c: c * 0.8 + x[i % 3] * i, x[0]), 1),
    "inputs alone": (lambda x: lax.map(lambda row: jnp.sin(row) * row, x), 1),
    "nested": (_nested, 2),
    "no inputs": (
        lambda x: lax.scan(lambda c, _: (c * 0.7 + x[1], c.sum()), x[0], None, length=5), 1),
    "reads what it writes": (_reads_what_it_writes, 1),
    "remat": (_remat, 1),
    "several": (_several, 1),
    "some rows": (
        lambda x: lax.fori_loop(1, 4, lambda i, y: y.at[i].set(x[i] * 2), jnp.ones_like(x)), 1),
    "unrolled": (
        lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x[0], x, unroll=3), 1),
}  # fmt: skip


def _loss(function):
    def loss(x):
        leaves = jax.tree.leaves(function(x))
        return sum(jnp.sum(leaf**2) for leaf in leaves if leaf.dtype == jnp.float32)

    return loss


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loops_that_count_are_scans(name):
    function, scans = FUNCTIONS[name]
    lifted = lift(function, X)
    found = names(lifted, X)
    assert (found.count("scan"), found.count("while")) == (scans, 0)
    assert_same(lifted(X), jax.jit(function)(X))
    for transform in (jax.grad, jax.hessian):
        derivatives = [jax.jit(transform(_loss(f)))(X) for f in (lifted, function)]
        assert_same(*derivatives, rtol=2e-4, atol=1e-5)
    if name in ("backwards", "nested", "several"):  # the derivative keeps rows, not whole arrays
        assert not {"dynamic_slice", "dynamic_update_slice"} & {*names(jax.grad(_loss(lifted)), X)}


@pytest.mark.parametrize(
    "condition",
    [
        lambda i: i < 7, lambda i: i <= 7,
        lambda i: lax.gt(jnp.int32(7), i), lambda i: lax.ge(jnp.int32(7), i),
    ],
    ids=["less", "at most", "more on the other side", "at least on the other side"],
)  # fmt: skip
def test_a_loop_has_the_steps_that_its_condition_says(condition):
    def looped(x, start, stride):
        return lax.while_loop(
            lambda state: condition(state[0]),
            lambda state: (state[0] + stride, state[1] * 2 + state[0]),
            (jnp.int32(start), x),
        )

    def function(x):
        return [looped(x, start, stride) for start in (1, 7, 8) for stride in (1, 3)]

    lifted = lift(function, jnp.int32(1))
    assert names(lifted, jnp.int32(1)).count("scan") == 6
    with jax.disable_jit():  # the XLA of JAX 0.9.0 makes a step from 8 on
        expected = function(jnp.int32(1))
    assert jax.jit(lifted)(jnp.int32(1)) == expected


def _counted(body, count, start):
    """Return a loop of which the body takes the number of its step, as no `fori_loop` has it."""
    _, final = lax.while_loop(
        lambda state: state[0] < count,
        lambda state: (state[0] + 1, body(*state)),
        (jnp.int32(0), start),
    )
    return final


def _written(rows, i, row):
    return lax.dynamic_update_slice_in_dim(rows, row.reshape(1), i, 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda x, i, rows: _written(rows, i, x[i] - 3 * x[6 - i]),
        lambda x, i, rows: _written(rows, 6 - i, x[i] - 3 * x[6 - i]),
        lambda x, i, rows: _written(rows, 6 - i, x[i] * 2),
        lambda x, i, rows: _written(rows, 6 - i, rows[i] + x[6 - i]),
    ],
)
def test_rows_are_read_and_written_in_both_directions(step):
    def function(x):
        return _counted(lambda i, rows: step(x, i, rows), 7, x * 100)

    x = jnp.arange(1, 8, dtype=jnp.int32)
    assert_same(jax.jit(lift(function, x))(x), jax.jit(function)(x))


def test_an_index_may_be_chosen_otherwise_in_the_last_step_alone():
    def function(x):
        def step(i, total):
            place = lax.select(i < 3, i + 3, i - 1)
            return total * 10 + lax.dynamic_index_in_dim(x, place, keepdims=False)

        return [_counted(step, count, jnp.int32(0)) for count in (3, 4, 5)]

    x = jnp.arange(7, dtype=jnp.int32)
    assert jax.jit(lift(function, x))(x) == [345, 3452, 34523]


def test_loops_that_do_not_count_stay():
    def function(x):
        return lax.while_loop(lambda c: c.sum() < 50, lambda c: c + jnp.abs(x[0]), x[-1])

    lifted = lift(function, X)
    assert_same(lifted(X), function(X))
    assert_same(jax.jacfwd(lifted)(X), jax.jacfwd(function)(X), rtol=1e-6)


def test_bounds_that_are_arguments():
    def function(x, n):
        return lax.fori_loop(0, n, lambda i, c: c + x[i], x[0])

    assert_same(lift(function, X, jnp.int32(3))(X, jnp.int32(5)), function(X, 5))


def test_a_symbolic_number_of_steps():
    spec = symbolic("n, 4")
    lifted = lift(_reads_backwards, spec)
    assert names(lifted, X).count("scan") == 1
    assert_same(lifted(X), jax.jit(_reads_backwards)(X))
    assert_same(export.export(lifted)(spec).call(X), jax.jit(_reads_backwards)(X))


def test_no_steps():
    def function(x):
        return lax.fori_loop(3, 3, lambda i, c: c + x[i], x[0]), lax.scan(
            lambda c, row: (c + row, c), x[0], x[:0]
        )

    assert_same(lift(function, X)(X), function(X))


def test_a_loop_of_many_steps_takes_no_memory_for_their_numbers():
    lifted = lift(lambda x: lax.fori_loop(0, 2**30, lambda i, c: c + jnp.float32(i), x), X[0, 0])
    text = str(jax.make_jaxpr(lifted)(X[0, 0]))
    assert "scan[" in text
    assert str(2**30) not in text.replace(f"length={2**30}", "")


def test_the_scan_is_that_of_the_original():
    """Rows come and go without a dimension of size 1, which every step would add and take."""

    def function(x):
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), x[0], x)

    for each in (lift(function, X), jax.jit(function)):
        found = equations(jax.make_jaxpr(each)(X))
        (body,) = (eqn.params["jaxpr"] for eqn in found if eqn.primitive.name == "scan")
        inner = sorted(eqn.primitive.name for eqn in equations(body))
        assert [name for name in inner if name != "jit"] == ["add", "reduce_sum", "tanh"]
