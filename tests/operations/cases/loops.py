"""Loops and branches of `jax.lax`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import INTEGERS, Lines
from tests.operations.operands import Operand, fixed, rows

M = rows(4, extreme=False)
V = Operand((4,), extreme=False)
LINE = Operand((6, 2), extreme=False)
_floats = Lines("jax.lax", ("float32", "float64", "bfloat16"))
_numbers = Lines("jax.lax", ("float32", "int32", "int64", "uint8"))
_once = Lines("jax.lax", ("float32", "int32"), without=("gradient", "second gradient"))


def _step(c, x):
    return jnp.tanh(c + x), c * x


def _hashed(f, x):
    def body(i, c):
        number = (i.astype(jnp.int32) * 1000003).astype(x.dtype)
        return c + number // jnp.asarray(3, x.dtype) + (number > 5).astype(x.dtype)

    return f(0, 300, body, x)


def _nested(f, x):
    def outer(i, y):
        def inner(j, z):
            return lax.cond(y[0] > j, lambda: z + x * j.astype(x.dtype), lambda: z - x * 2)

        return f(0, 3, inner, y)

    return f(0, 2, outer, x)


CASES = (
    *_floats("scan", M, note="backwards", by=lambda f, x: f(_step, x[:1].sum(0), x, reverse=True)),
    *_floats("scan", M, note="and its results",
             by=lambda f, x: sum((y**2).sum() for y in f(_step, x[:1].sum(0), x))),
    *_floats("scan", M, note="numbered", by=lambda f, x: f(
        lambda c, row: (c + row[1] * row[0].astype(x.dtype), c * row[1]), x[:1].sum(0),
        (jnp.arange(x.shape[0]), x), reverse=True)),
    *_floats("scan", M, note="of no rows",
             by=lambda f, x: f(lambda c, _: (c * 0.5, c + 1), x, None, length=4)),
    *_floats("scan", M, note="in a scan", by=lambda f, x: f(
        lambda c, row: f(lambda d, y: (d + y, d * y), c, row), jnp.zeros((), x.dtype), x)),
    *_floats("scan", Operand((5, 2, 3), extreme=False), Operand((3, 4), extreme=False),
             note="of products", by=lambda f, x, w: [
        f(lambda c, row: (jnp.tanh(c + row @ w), row.sum() + c), jnp.zeros((2, 4), x.dtype), x,
          reverse=reverse) for reverse in (False, True)]),
    *_once("fori_loop", V, fixed([-2, 0, 1, 9], "int32"), note="to what is computed",
           by=lambda f, x, n: [
        f(0, n[k], lambda i, c: c * 2 + i.astype(x.dtype), x) for k in range(4)]),
    *_once("fori_loop", Operand((4,), 0, 2, extreme=False), fixed([0, 1, 2, 9], "int32"),
           note="down to a size", by=lambda f, x, n: [
        f(2, 2 + n[k], lambda i, c: c + x[i % 4], x) for k in range(4)]),
    *_once("while_loop", fixed([1, 100]), note="until it is large", by=lambda f, x: [
        f(lambda c: c[1] < 50, lambda c: (c[0] + 1, c[1] * 2), (0, x[k])) for k in (0, 1)]),
    *_once("while_loop", Operand((12,), extreme=False), note="by steps of three", by=lambda f, x: f(
        lambda c: c[0] < 10, lambda c: (c[0] + 3, c[1] + x[c[0]]), (2, jnp.zeros((), x.dtype)))),
    *_once("while_loop", M, note="over its size", by=lambda f, x: f(
        lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] + x.sum()),
        (0, jnp.zeros((), x.dtype)))),
    *Lines("jax.lax", INTEGERS)("fori_loop", V, note="that wraps around", by=_hashed),
    *_numbers("fori_loop", LINE, note="that reads what it writes", by=lambda f, x: [
        f(0, 5, lambda i, y: y.at[i].set(y[i - 1] + y[i]), x),
        f(1, 4, lambda i, y: y.at[i].set(y[(i + 1) % 6] + y[i]), x)]),
    *_numbers("fori_loop", LINE, note="that writes some rows", by=lambda f, x: f(
        0, 4, lambda i, y: lax.dynamic_update_slice(y, x[:1], (i, 0)), x)),
    *_numbers("fori_loop", V, note="of branches", by=lambda f, x: f(
        0, 5, lambda i, c: lax.cond(i % 2 == 0, lambda: c + x, lambda: c * 2), x)),
    *_numbers("fori_loop", V, note="in a loop", by=_nested),
    *_numbers("reduce", M, note="composed", by=lambda f, x: f(
        x, np.ones((), x.dtype), lambda a, b: a * 2 + b, (0,))),
)  # fmt: skip
