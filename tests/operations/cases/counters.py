"""Loops of a number that they carry: those that are scans, or that only look like some."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import Lines
from tests.operations.operands import rows

V = rows(low=1, high=9, extreme=False)
_counted = Lines("jax.lax", ("int32",), without=("empty", "vmap"))


def _loop(f, x, body, *, start=0, stride=1, limit=None, going=lambda i, limit, _: i < limit):
    """Return a carried array after a loop of a counter, as no `fori_loop` has it."""
    limit = x.shape[0] if limit is None else limit
    _, final = f(
        lambda state: going(state[0], limit, state[1]),
        lambda state: (state[0] + stride, body(*state)),
        (jnp.int32(start), x),
    )
    return final


def _write(rows_, i, row):
    return lax.dynamic_update_slice(rows_, jnp.reshape(row, (1,)), (i,))


def _read(x, i):
    return lax.dynamic_slice(x, (i,), (1,))[0]


def _irregular(f, x):
    step = lambda state: (state[0] + 1 + state[0] % 2, state[1] * 3 + state[0])  # noqa: E731
    return f(lambda state: state[0] < x.shape[0], step, (0, x))


def _in_bytes(f, x):
    """A loop of which the counter is a byte, and begins anew behind 255."""
    step = lambda state: (state[0] + np.uint8(100), state[1] + 1)  # noqa: E731
    return f(lambda state: state[0] < np.uint8(250), step, (np.uint8(0), x))[1]


def _in_int8(f, x):
    many = jnp.arange(300, dtype=x.dtype) + x[0]
    return _loop(f, x, lambda i, b: b * 3 + _read(many, i.astype(jnp.int8)), limit=300)


def _longer(f, x):
    more = jnp.concatenate([x, x, x[:1] - 7])
    return _loop(f, more, lambda i, b: _write(b, i, _read(more, i + 1) * 2), limit=x.shape[0])


def _too_short(f, x):
    short = jnp.arange(3, dtype=x.dtype)
    return _loop(f, short, lambda i, b: _write(b, i, _read(b, i) + _read(short, i)),
                 limit=x.shape[0])  # fmt: skip


def _in_both_directions(f, x):
    """Rows that are read and written from the front and from behind."""
    last, start = x.shape[0] - 1, x * 100
    return [
        _loop(f, start, body)
        for body in (
            lambda i, b: _write(b, i, _read(x, i) - 3 * _read(x, last - i)),
            lambda i, b: _write(b, last - i, _read(x, i) - 3 * _read(x, last - i)),
            lambda i, b: _write(b, last - i, _read(x, i) * 2),
            lambda i, b: _write(b, last - i, _read(b, i) + _read(x, last - i)),
        )
    ]


_LOOPS = {
    "a counter that is carried": lambda f, x: f(
        lambda state: state[0] < x.shape[0],
        lambda state: (state[0] + 1, state[0], state[1] + state[2]), (0, 0, x)),
    "a counter that is written": lambda f, x: _loop(f, x, lambda i, b: _write(b, i, i)),
    "a counter of another course": _irregular,
    "a counter that overflows": _in_bytes,
    "an index that overflows": _in_int8,
    "another limit": lambda f, x: _loop(
        f, x, lambda i, b: b * 3 + i, going=lambda i, n, b: i < jnp.minimum(n, b[0])),
    "another condition": lambda f, x: _loop(
        f, x, lambda i, b: b * 3 + i, going=lambda i, n, b: (i < n) & (b.sum() < 50)),
    "not equal": lambda f, x: _loop(f, x, lambda i, b: b * 3 + i, going=lambda i, n, _: i != n),
    "at most": lambda f, x: _loop(
        f, x, lambda i, b: _write(b, i, i), going=lambda i, n, _: i <= n),
    "rows read of what is written": lambda f, x: _loop(
        f, x, lambda i, b: _write(b, i, _read(b, i - 1) + 2 * b.sum())),
    "written twice": lambda f, x: _loop(
        f, x, lambda i, b: _write(_write(b, i, 5), x.shape[0] - 1 - i, _read(x, i))),
    "written behind": lambda f, x: _loop(f, x, lambda i, b: _write(b, i + 1, _read(x, i) * 2)),
    "written in twos": lambda f, x: _loop(
        f, x, lambda i, b: _write(b, i, _read(x, i) * 2), stride=2),
    "no steps, or fewer than none": lambda f, x: _loop(
        f, x, lambda i, b: _write(b, i, _read(x, i) * 2), start=4),
    "more rows than steps": _longer,
    "fewer rows than steps": _too_short,
    "in both directions": _in_both_directions,
    "an index of the last step": lambda f, x: [
        _loop(f, x, lambda i, b: b * 10 + _read(jnp.arange(7, dtype=x.dtype),
                                                lax.select(i < 3, i + 3, i - 1)), limit=limit)
        for limit in (3, 4, 5)],
}  # fmt: skip
CASES = tuple(
    case for note, call in _LOOPS.items() for case in _counted("while_loop", V, note=note, by=call)
)
