"""Loops and branches in each other, whose regions use what is around them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.runtime import describe
from tests.bridge.litert.signatures import run_as_jax

F32 = np.float32
X = np.array([[1.5, -2.0, 0.5], [0.25, 1.0, -1.0]], F32)
Y, Z = X[::-1] * 2, X + 1
WEIGHTS = np.random.default_rng(0).normal(size=(96, 96)).astype(F32) / 10


def scanned(x: Any, weights: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c @ weights + row), c.sum()), x[0], x)


def searched(x: Any, y: Any) -> Any:
    return lax.while_loop(
        lambda v: v.sum() < 50 + y[0, 0], lambda v: 2 * v + jnp.abs(y), jnp.abs(x)
    )


def nested(x: Any, y: Any, z: Any) -> Any:
    def inner(i: Any, v: Any) -> Any:
        return lax.while_loop(lambda u: u.sum() < i + y[0, 0], lambda u: u * 2 + z[0] ** 2 + 1, v)

    return lax.fori_loop(0, 3, inner, jnp.abs(x))


def exchanged(x: Any, y: Any, z: Any) -> Any:
    """Return what a loop ends with whose values change places, in and around branches."""

    def inner(j: Any, pair: Any) -> Any:
        a, b = pair
        return b / 2, lax.cond(j % 2 == 0, lambda q, r: q - r, lambda q, r: r + z, a, b)

    def step(_: Any, pair: Any) -> Any:
        a, b = pair
        a, b = lax.cond(
            a.sum() > b.sum(),
            lambda a, b: (b, a + z),
            lambda a, b: lax.fori_loop(0, 3, inner, (a, b)),
            a,
            b,
        )
        return b * 0.9, a

    return lax.fori_loop(0, 6, step, (x, y))


def rotated(x: Any, y: Any, z: Any) -> Any:
    return lax.fori_loop(0, 4, lambda i, v: (v[1], v[2], v[0]), (x, y, z))


def branched(x: Any, y: Any, z: Any) -> Any:
    """Return the results of branches in branches, which take their operands in other orders."""

    def otherwise(x: Any, y: Any) -> Any:
        return lax.cond(y.sum() > 0, lambda y, x: y + 2 * x + z, lambda y, x: 7 * y - x, x, y)

    first = lax.cond(x.sum() > 100, lambda x, y: y - x, otherwise, x, y)
    return first, lax.cond(x.sum() < 100, lambda x, y: y - x, otherwise, x, y)


@pytest.mark.parametrize("kernels", ["delegate", "builtin"])
@pytest.mark.parametrize("function", [nested, exchanged, rotated, branched])
def test_loops_and_branches(litert_process, function, kernels):
    run_as_jax(litert_process, function, X, Y, Z, kernels=kernels)


def test_loops_with_conditions_of_what_is_around_them(litert_process):
    run_as_jax(litert_process, searched, X, Y)


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
def test_switches(litert_process, index):
    def function(x: Any, i: Any) -> Any:
        def in_a_loop(x: Any) -> Any:
            return lax.fori_loop(0, 3, lambda j, v: v * 2 + i, x)

        branches = [lambda x: x + 1, in_a_loop, lambda x: x * x - i]
        return lax.switch(i, branches, x), lax.switch(i, branches[:2], x)

    run_as_jax(litert_process, function, X, np.int32(index))


def test_a_loop_has_its_weights_once(litert_process):
    x = np.ones((4, 96), F32) / 8
    model = run_as_jax(litert_process, lambda x: scanned(x, WEIGHTS), x)
    assert WEIGHTS.nbytes < len(model) < 1.5 * WEIGHTS.nbytes
    run_as_jax(litert_process, scanned, x, WEIGHTS)


def test_constants_are_not_carried(litert_process):
    def function(x: Any) -> Any:
        carried = lax.while_loop(
            lambda v: v[0].sum() < 100, lambda v: (v[0] + jnp.abs(v[1]).sum(), v[1]), (x, WEIGHTS)
        )
        return carried[0], carried[1][0]

    model = run_as_jax(litert_process, function, X)
    assert len(model) < 1.5 * WEIGHTS.nbytes
    assert describe(model, process=litert_process).operators["WHILE"] == 1
