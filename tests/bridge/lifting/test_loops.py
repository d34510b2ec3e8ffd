"""Loops that count are scans again, over the arrays that the original scans over.

Other loops of counters are in `tests/operations/cases/counters.py`.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

from tests.bridge.lifting.lifted import assert_same, equations, lift, names, symbolic
from tests.operations.cases import counters

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


def _in_twos(x):
    step = lambda state: (state[0] + 2, state[1] * 0.5 + state[0])  # noqa: E731
    return lax.while_loop(lambda state: state[0] < x.shape[0], step, (0, x[0]))


# Each function, with the number of scans in it.
FUNCTIONS = {
    "backwards": (_reads_backwards, 1),
    "batched": (lambda x: jax.vmap(_reads_backwards)(jnp.stack([x, x + 1])), 1),
    "both ways": (_both_ways, 2),
    "columns batched": (
        lambda x: jax.vmap(_reads_backwards, in_axes=1)(jnp.stack([x, x + 1], axis=1)), 1),
    "counts": (lambda x: lax.fori_loop(2, 9, lambda i, c: c * 0.8 + x[i % 3] * i, x[0]), 1),
    "counts to a size": (
        lambda x: lax.fori_loop(2, x.shape[0] - 1, lambda i, c: c * 0.8 + i, x[0]), 1),
    "in twos": (_in_twos, 1),
    "inputs alone": (lambda x: lax.map(lambda row: jnp.sin(row) * row, x), 1),
    "nested": (_nested, 2),
    "no inputs": (
        lambda x: lax.scan(lambda c, _: (c * 0.7 + x[1], c.sum()), x[0], None, length=5), 1),
    "reads what it writes": (_reads_what_it_writes, 1),
    "remat": (_remat, 1),
    "several": (_several, 1),
    "shifted": (
        lambda x: lax.scan(lambda c, r: (c + r[0] * r[1], c), x[0], (x[1:], x[:-1])), 1),
    "some rows": (
        lambda x: lax.fori_loop(1, 4, lambda i, y: y.at[i].set(x[i] * 2), jnp.ones_like(x)), 1),
    "unrolled": (
        lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x[0], x, unroll=3), 1),
}  # fmt: skip


_FORWARDS = ("counts to a size", "in twos")  # which JAX differentiates so alone


def _loss(function):
    def loss(x):
        leaves = jax.tree.leaves(function(x))
        return sum(jnp.sum(leaf**2) for leaf in leaves if leaf.dtype == jnp.float32)

    return loss


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape) for name in FUNCTIONS for shape in (None, "n, 4", "n, m")
        if shape is None or name != "unrolled"  # which JAX does with a known length alone
    ],
)  # fmt: skip
def test_loops_that_count_are_scans(name, shape):
    """Also of a number of rows that is symbolic, which is exported again."""
    function, scans = FUNCTIONS[name]
    spec = X if shape is None else symbolic(shape, constraints=["n >= 7"])
    lifted = lift(function, spec)
    found = names(lifted, spec)
    assert (found.count("scan"), found.count("while")) == (scans, 0)
    again = export.export(jax.jit(lifted))(spec).call
    tolerance = {"rtol": 1e-6} if shape else {}
    assert_same(again(X), jax.jit(function)(X), **tolerance)
    if name in _FORWARDS:
        return
    gradient = jax.grad(_loss(lifted))
    found = export.export(jax.jit(gradient))(spec).call(X)
    assert_same(found, jax.jit(jax.grad(_loss(function)))(X), rtol=2e-4, atol=1e-5)
    if name in ("backwards", "nested", "several") and shape is None:
        # The derivative keeps rows, not whole arrays.
        assert not {"dynamic_slice", "dynamic_update_slice"} & {*names(gradient, spec)}


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


def test_loops_that_look_like_scans_are_exported_again():
    """Those of the table, of a length that is symbolic while they are lifted."""

    def function(x):
        return [case.function(x) for case in counters.CASES]

    spec = symbolic("n", "int32")
    again = export.export(jax.jit(lift(function, spec)))(spec)
    for count in (3, 4, 7):
        x = jnp.arange(1, count + 1, dtype=jnp.int32)
        assert_same(again.call(x), jax.jit(function)(x))


def test_a_loop_of_many_steps_takes_no_memory_for_their_numbers():
    lifted = lift(lambda x: lax.fori_loop(0, 2**30, lambda i, c: c + jnp.float32(i), x), X[0, 0])
    text = str(jax.make_jaxpr(lifted)(X[0, 0]))
    assert "scan[" in text
    assert str(2**30) not in text.replace(f"length={2**30}", "")


@pytest.mark.parametrize("spec", [X, symbolic("n, m")], ids=["known", "symbolic"])
def test_the_scan_is_that_of_the_original(spec):
    """Rows come and go without a dimension of size 1, which every step would add and take."""

    def function(x):
        return lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), x[0], x)

    for each in (lift(function, spec), jax.jit(function)):
        found = equations(jax.make_jaxpr(each)(spec))
        (body,) = (eqn.params["jaxpr"] for eqn in found if eqn.primitive.name == "scan")
        inner = sorted(eqn.primitive.name for eqn in equations(body))
        assert [name for name in inner if name != "jit"] == ["add", "reduce_sum", "tanh"]
