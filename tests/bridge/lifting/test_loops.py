"""Loops that count are scans again, over the arrays that the original scans over."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge


def _reads_backwards(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x, reverse=True)


def _both_ways(x):
    forwards, _ = lax.scan(lambda c, row: (c * 0.5 + row, None), x[0], x)
    return lax.scan(lambda c, row: (c + forwards * row, row.sum()), x[1], x, reverse=True)


def _unrolled(x):
    return lax.scan(lambda c, row: (jnp.sin(c) + row, c), x[0], x, unroll=3)


def _nested(x):
    def outer(c, row):
        inner, rows = lax.scan(lambda d, e: (d * 0.9 + e, d), c, row)
        return inner, rows.sum() + row

    return lax.scan(outer, jnp.float32(1.0), x)


def _counts(x):
    return lax.fori_loop(2, 9, lambda i, c: c * 0.8 + x[i % 3] * i, x[0])


def _without_inputs(x):
    return lax.scan(lambda c, _: (c * 0.7 + x[1], c.sum()), x[0], None, length=5)


def _only_inputs(x):
    return lax.map(lambda row: jnp.sin(row) * row, x)


def _several(x):
    def step(carry, row):
        (a, b), n = carry
        return ((a + row["x"], b * row["y"].sum()), n + 1), {"a": a, "n": n}

    return lax.scan(step, ((x[0], x.sum()), 0), {"x": x, "y": x + 1})


def _writes_some_rows(x):
    def step(i, buffer):
        return buffer.at[i].set(x[i] * 2)

    return lax.fori_loop(1, 4, step, jnp.ones_like(x))


def _reads_what_it_writes(x):
    def step(i, buffer):
        return buffer.at[i].set(buffer[i - 1] * 0.5 + x[i])

    return lax.fori_loop(1, x.shape[0], step, x)


def _remat(x):
    step = jax.checkpoint(lambda c, row: (jnp.tanh(c + row), jnp.exp(c)))
    return lax.scan(step, x[0], x)


def _batched(x):
    return jax.vmap(_reads_backwards)(jnp.stack([x, x + 1]))


# Each function, with the number of scans in it; None where it is as many as there are.
FUNCTIONS = {
    "backwards": (_reads_backwards, 1),
    "batched": (_batched, 1),
    "both ways": (_both_ways, 2),
    "counts": (_counts, 1),
    "inputs alone": (_only_inputs, 1),
    "nested": (_nested, 2),
    "no inputs": (_without_inputs, 1),
    "reads what it writes": (_reads_what_it_writes, 1),
    "remat": (_remat, 1),
    "several": (_several, 1),
    "some rows": (_writes_some_rows, 1),
    "unrolled": (_unrolled, 1),
}
_SCAN = re.compile(r"\bscan\[")


def _loss(function):
    def loss(x):
        leaves = jax.tree.leaves(function(x))
        return sum(jnp.sum(leaf**2) for leaf in leaves if leaf.dtype == jnp.float32)

    return loss


@pytest.fixture(scope="module")
def x():
    return jnp.linspace(-1.0, 1.0, 28, dtype=jnp.float32).reshape(7, 4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loops_that_count_are_scans(name, x):
    function, scans = FUNCTIONS[name]
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    jaxpr = str(jax.make_jaxpr(lifted)(x))
    assert len(_SCAN.findall(jaxpr)) == scans
    assert "while[" not in jaxpr
    jax.tree.map(np.testing.assert_array_equal, lifted(x), jax.jit(function)(x))
    for transform in (jax.grad, jax.hessian):
        derivatives = [jax.jit(transform(_loss(f)))(x) for f in (lifted, function)]
        np.testing.assert_allclose(*derivatives, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["backwards", "nested", "several"])
def test_what_is_scanned_is_an_input_of_the_scan(name, x):
    """So the derivative keeps rows, not the whole arrays, of each step."""
    function, _ = FUNCTIONS[name]
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    jaxpr = str(jax.make_jaxpr(jax.grad(_loss(lifted)))(x))
    assert "dynamic_slice" not in jaxpr
    assert "dynamic_update_slice" not in jaxpr


CONDITIONS = {
    "less": lambda i: i < 7,
    "at most": lambda i: i <= 7,
    "more on the other side": lambda i: lax.gt(jnp.int32(7), i),
    "at least on the other side": lambda i: lax.ge(jnp.int32(7), i),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_loop_has_the_steps_that_its_condition_says(condition):
    def looped(x, start, stride):
        return lax.while_loop(
            lambda state: CONDITIONS[condition](state[0]),
            lambda state: (state[0] + stride, state[1] * 2 + state[0]),
            (jnp.int32(start), x),
        )

    def function(x):
        return [looped(x, start, stride) for start in (1, 7, 8) for stride in (1, 3)]

    lifted = bridge.to_jax(export.export(jax.jit(function))(jnp.int32(1)))
    assert len(_SCAN.findall(str(jax.make_jaxpr(lifted)(jnp.int32(1))))) == 6
    assert jax.jit(lifted)(jnp.int32(1)) == jax.jit(function)(jnp.int32(1))


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
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    np.testing.assert_array_equal(jax.jit(lifted)(x), jax.jit(function)(x))


def test_an_index_may_be_chosen_otherwise_in_the_last_step_alone():
    def function(x):
        def step(i, total):
            place = lax.select(i < 3, i + 3, i - 1)
            return total * 10 + lax.dynamic_index_in_dim(x, place, keepdims=False)

        return [_counted(step, count, jnp.int32(0)) for count in (3, 4, 5)]

    x = jnp.arange(7, dtype=jnp.int32)
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    assert jax.jit(lifted)(x) == [345, 3452, 34523]


def test_loops_that_do_not_count_stay(x):
    def function(x):
        return lax.while_loop(lambda c: c.sum() < 50, lambda c: c + jnp.abs(x[0]), x[-1])

    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    np.testing.assert_array_equal(lifted(x), function(x))
    np.testing.assert_allclose(jax.jacfwd(lifted)(x), jax.jacfwd(function)(x), rtol=1e-6)


def test_bounds_that_are_arguments(x):
    def function(x, n):
        return lax.fori_loop(0, n, lambda i, c: c + x[i], x[0])

    lifted = bridge.to_jax(export.export(jax.jit(function))(x, jnp.int32(3)))
    np.testing.assert_array_equal(lifted(x, jnp.int32(5)), function(x, 5))


def test_a_symbolic_number_of_steps(x):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("n, 4"), jnp.float32)
    exported = export.export(jax.jit(_reads_backwards))(spec)
    lifted = bridge.to_jax(exported)
    assert len(_SCAN.findall(str(jax.make_jaxpr(lifted)(x)))) == 1
    jax.tree.map(np.testing.assert_array_equal, lifted(x), jax.jit(_reads_backwards)(x))
    again = export.export(lifted)(spec)
    jax.tree.map(np.testing.assert_array_equal, again.call(x), jax.jit(_reads_backwards)(x))


def test_no_steps(x):
    def function(x):
        return lax.fori_loop(3, 3, lambda i, c: c + x[i], x[0]), lax.scan(
            lambda c, row: (c + row, c), x[0], x[:0]
        )

    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    jax.tree.map(np.testing.assert_array_equal, lifted(x), function(x))


def test_a_loop_of_many_steps_takes_no_memory_for_their_numbers():
    def function(x):
        return lax.fori_loop(0, 2**30, lambda i, c: c + jnp.float32(i), x)

    lifted = bridge.to_jax(export.export(jax.jit(function))(jnp.float32(0)))
    jaxpr = jax.make_jaxpr(lifted)(jnp.float32(0))
    assert "scan[" in str(jaxpr)
    assert str(2**30) not in str(jaxpr).replace(f"length={2**30}", "")


def test_the_scan_is_that_of_the_original(x):
    """Rows come and go without a dimension of size 1, which every step would add and take."""

    def function(x):
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), x[0], x)

    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    bodies = [_body_of(jax.make_jaxpr(f)(x)) for f in (lifted, jax.jit(function))]
    names = [sorted(_names_in(body)) for body in bodies]
    assert names[0] == names[1] == ["add", "reduce_sum", "tanh"]


def _names_in(jaxpr):
    """Yield the names of the primitives, those in calls of `jax.jit` included."""
    for eqn in jaxpr.eqns:
        if "jaxpr" in eqn.params:
            yield from _names_in(eqn.params["jaxpr"])
        else:
            yield eqn.primitive.name


def _body_of(closed):
    """Return the body of the only scan in a jaxpr, which may be in calls of `jax.jit`."""
    for eqn in closed.eqns:
        if eqn.primitive.name == "scan":
            return eqn.params["jaxpr"]
        if "jaxpr" in eqn.params:
            return _body_of(eqn.params["jaxpr"])
    raise AssertionError("there is no scan")
