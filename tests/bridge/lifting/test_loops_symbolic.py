"""Loops over as many steps as an array has rows are scans again, while that number is symbolic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge


def _forwards(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x)


def _backwards(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), x[0], x, reverse=True)


def _several(x):
    def step(carry, row):
        (a, b), n = carry
        return ((a + row["x"], b * row["y"].sum()), n + 1), {"a": a, "n": n}

    return lax.scan(step, ((x[0], x.sum()), 0), {"x": x, "y": x + 1})


def _nested(x):
    def outer(c, row):
        inner, rows = lax.scan(lambda d, e: (d * 0.9 + e, d), c, row, reverse=True)
        return inner, rows.sum() + row

    return lax.scan(outer, jnp.float32(1.0), x)


def _shifted(x):
    return lax.scan(lambda c, rows: (c + rows[0] * rows[1], c), x[0], (x[1:], x[:-1]))


def _mapped(x):
    return lax.map(lambda row: jnp.sin(row) * row, x)


def _counted(x):
    return lax.fori_loop(2, x.shape[0] - 1, lambda i, c: c * 0.8 + i, x[0])


def _in_twos(x):
    step = lambda state: (state[0] + 2, state[1] * 0.5 + state[0])  # noqa: E731
    return lax.while_loop(lambda state: state[0] < x.shape[0], step, (0, x[0]))


def _mapped_scan(x):
    return jax.vmap(_backwards, in_axes=1)(jnp.stack([x, x + 1], axis=1))


SCANS = (
    _backwards, _counted, _forwards, _in_twos, _mapped, _mapped_scan, _nested, _several, _shifted,
)  # fmt: skip


def _scans(x):
    return {function.__name__: function(x) for function in SCANS}


def _loss(function):
    def loss(x):
        results = function(x)
        del results["_counted"], results["_in_twos"]  # which JAX differentiates forwards only
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(results) if x.dtype == jnp.float32)

    return loss


def _spec(shape, dtype=jnp.float32, constraints=()):
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape, constraints=constraints), dtype)


def _same(one, other, **tolerance):
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, **tolerance), one, other)


@pytest.mark.parametrize("shape", ["n, 3", "n, m"])
def test_scans_of_symbolic_length_are_scans(shape):
    spec = _spec(shape, constraints=["n >= 4"])
    lifted = bridge.to_jax(export.export(jax.jit(_scans))(spec))
    jaxpr = str(jax.make_jaxpr(lifted)(spec))
    assert (jaxpr.count("scan["), jaxpr.count("while[")) == (len(SCANS) + 1, 0)
    again, gradient = (
        export.export(jax.jit(function))(spec) for function in (lifted, jax.grad(_loss(lifted)))
    )
    for count in (4, 7):
        x = jnp.linspace(-1.0, 1.0, count * 3, dtype=jnp.float32).reshape(count, 3)
        _same(again.call(x), jax.jit(_scans)(x), rtol=1e-6)
        _same(gradient.call(x), jax.jit(jax.grad(_loss(_scans)))(x), rtol=2e-4, atol=1e-5)


def test_the_body_is_that_of_the_original():
    spec = _spec("n, m")
    lifted = bridge.to_jax(export.export(jax.jit(_backwards))(spec))
    bodies = [_body_of(jax.make_jaxpr(function)(spec)) for function in (lifted, _backwards)]
    names = [[eqn.primitive.name for eqn in body.eqns] for body in bodies]
    assert names == [["add", "tanh", "mul"]] * 2


def _body_of(program):
    for eqn in program.eqns:
        if "jaxpr" in eqn.params:
            inner = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
            return inner if eqn.primitive.name == "scan" else _body_of(inner)
    raise AssertionError("there is no scan")


def _loop(x, body, *, start=0, stride=1, limit=None, going=lambda i, limit, _: i < limit):
    """Return a carried array after a loop of a counter, as no `fori_loop` has it."""
    limit = x.shape[0] if limit is None else limit
    _, final = lax.while_loop(
        lambda state: going(state[0], limit, state[1]),
        lambda state: (state[0] + stride, body(*state)),
        (jnp.int32(start), x),
    )
    return final


def _write(rows, i, row):
    return lax.dynamic_update_slice(rows, jnp.reshape(row, (1,)), (i,))


def _read(x, i):
    return lax.dynamic_slice(x, (i,), (1,))[0]


def _irregular(x):
    step = lambda state: (state[0] + 1 + state[0] % 2, state[1] * 3 + state[0])  # noqa: E731
    return lax.while_loop(lambda state: state[0] < x.shape[0], step, (0, x))


def _in_bytes(x):
    """A loop of which the counter is a byte, and begins anew behind 255."""
    step = lambda state: (state[0] + np.uint8(100), state[1] + 1)  # noqa: E731
    return lax.while_loop(lambda state: state[0] < np.uint8(250), step, (np.uint8(0), x))[1]


def _in_int8(x):
    rows = jnp.arange(300, dtype=x.dtype) + x[0]
    return _loop(x, lambda i, b: b * 3 + _read(rows, i.astype(jnp.int8)), limit=300)


def _longer(x):
    longer = jnp.concatenate([x, x, x[:1] - 7])
    return _loop(longer, lambda i, b: _write(b, i, _read(longer, i + 1) * 2), limit=x.shape[0])


def _too_short(x):
    short = jnp.arange(3, dtype=x.dtype)
    return _loop(short, lambda i, b: _write(b, i, _read(b, i) + _read(short, i)), limit=x.shape[0])


# Loops that are not the scan that they look like, or are in part.
LOOK_ALIKES = {
    "a counter that is carried": lambda x: lax.fori_loop(
        0, x.shape[0], lambda i, state: (i, state[0] + state[1]), (0, x)
    ),
    "a counter that is written": lambda x: _loop(x, lambda i, b: _write(b, i, i)),
    "a counter of another course": _irregular,
    "a counter that overflows": _in_bytes,
    "an index that overflows": _in_int8,
    "another limit": lambda x: _loop(
        x, lambda i, b: b * 3 + i, going=lambda i, n, b: i < jnp.minimum(n, b[0])
    ),
    "another condition": lambda x: _loop(
        x, lambda i, b: b * 3 + i, going=lambda i, n, b: (i < n) & (b.sum() < 50)
    ),
    "not equal": lambda x: _loop(x, lambda i, b: b * 3 + i, going=lambda i, n, _: i != n),
    "at most": lambda x: _loop(x, lambda i, b: _write(b, i, i), going=lambda i, n, _: i <= n),
    "rows read of what is written": lambda x: _loop(
        x, lambda i, b: _write(b, i, _read(b, i - 1) + 2 * b.sum())
    ),
    "written twice": lambda x: _loop(
        x, lambda i, b: _write(_write(b, i, 5), x.shape[0] - 1 - i, _read(x, i))
    ),
    "written behind": lambda x: _loop(x, lambda i, b: _write(b, i + 1, _read(x, i) * 2)),
    "written in twos": lambda x: _loop(x, lambda i, b: _write(b, i, _read(x, i) * 2), stride=2),
    "no steps, or fewer than none": lambda x: _loop(
        x, lambda i, b: _write(b, i, _read(x, i) * 2), start=4
    ),
    "more rows than steps": _longer,
    "fewer rows than steps": _too_short,
}


def _look_alikes(x):
    return {name: function(x) for name, function in LOOK_ALIKES.items()}


def test_loops_that_look_like_scans_compute_the_same():
    spec = _spec("n", jnp.int32)
    lifted = bridge.to_jax(export.export(jax.jit(_look_alikes))(spec))
    again = export.export(lifted)(spec)
    for count in (3, 4, 7):
        x = jnp.arange(1, count + 1, dtype=jnp.int32)
        expected = jax.jit(_look_alikes)(x)
        _same(again.call(x), expected)
        _same(bridge.to_jax(export.export(jax.jit(_look_alikes))(x))(x), expected)
