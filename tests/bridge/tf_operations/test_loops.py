"""Loops and branches, whose bodies are functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from bridge.tf_operations.lowering import lower_call
from tests.bridge.tf_operations.checking import (
    check,
    check_call,
    export_call,
    lowered,
    nodes_of,
    operations,
)

_ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def _running(x, *, reverse=False):
    def step(total, row):
        return total * 0.5 + row, jnp.sin(total)

    return lax.scan(step, jnp.zeros(2), x, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_and_its_gradient(reverse):
    def loss(x):
        total, rows = _running(x, reverse=reverse)
        return (rows**2).sum() + total.sum()

    check(lambda x: [_running(x, reverse=reverse), jax.grad(loss)(x)], _ROWS)


def test_rows_of_a_scan_are_a_list_until_the_end():
    names = operations(_running, _ROWS)
    assert {"TensorListReserve", "TensorListSetItem", "TensorListStack"} <= set(names)
    assert "TensorScatterUpdate" not in names


def test_an_array_that_is_read_in_the_loop_is_no_list():
    def fill(x):
        def step(i, y):
            return y.at[i].set(y[(i + 1) % 6] + y[i])

        return lax.fori_loop(0, 6, step, x)

    check(fill, _ROWS)
    assert "TensorListSetItem" not in operations(fill, _ROWS)


def test_an_array_of_which_some_rows_are_written_keeps_the_others():
    def fill(x):
        return lax.fori_loop(0, 4, lambda i, y: lax.dynamic_update_slice(y, x[:1], (i, 0)), x)

    check(fill, _ROWS)


def test_a_loop_that_ends_when_its_values_say_so():
    def halve(x, n):
        return lax.while_loop(lambda s: s[0] > n, lambda s: (s[0] / 2, s[1] + 1), (x, 0))

    check(halve, np.float32(100), np.float32(3))


def test_a_loop_of_a_number_of_iterations_that_is_an_argument():
    check(
        lambda n, x: lax.fori_loop(0, n, lambda i, y: y * 1.5 + i, x),
        np.int32(5),
        np.float32([1, 2]),
    )


def test_loops_in_loops_and_branches_see_what_is_around_them():
    def function(x, flag):
        def outer(i, y):
            def inner(j, z):
                return lax.cond(flag, lambda: z + x * j, lambda: z - x * i)

            return lax.fori_loop(0, 3, inner, y)

        return lax.fori_loop(0, 2, outer, x)

    check(function, np.float32([1, 2]), np.bool_(True))
    check(function, np.float32([1, 2]), np.bool_(False))


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_branches_by_an_index(index):
    def choose(i, x):
        return lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x)

    check(choose, np.int32(index), np.float32([1, 2]))


def test_loops_and_branches_are_what_tensorflow_does_not_compute_beforehand():
    call = export_call(lambda x: lax.cond(x[0] > 0, lambda: _running(x[:, None]), lambda: _running(
        x[:, None] + 1)), _ROWS[:, 0])  # fmt: skip
    for is_open in (False, True):
        names = {node.op for node in nodes_of(lower_call(call, for_converters=is_open))}
        assert {"If", "While"} <= names
        assert not {"StatelessIf", "StatelessWhile"} & names


def test_a_loop_over_any_number_of_rows():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, 2"), "float32")
    graph = lowered(_running, spec)
    assert len(graph.functions) == 2


def test_running_extremes_of_any_number_of_elements():
    function = export.export(jax.jit(lambda x: [lax.cummax(x), lax.cummin(x, reverse=True)]))
    exported = function(jax.ShapeDtypeStruct(export.symbolic_shape("b"), "float32"))
    check_call(exported, np.float32([1, 3, 2, np.nan, 5]))
    check_call(exported, np.float32([1]))


def test_a_reduction_whose_order_matters():
    def compose(x):
        return lax.reduce(x, np.float32(1), lambda a, b: a * 2 + b, (0,))

    check(compose, _ROWS)
