"""Loops: scans in both directions, while, fori with a computed limit, nested ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, check_whole, operations


def _numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _loop_of(model):
    (loop,) = [node for node in model.graph.node if node.op_type in ("Loop", "Scan")]
    return loop.attribute[0].g


def _scan(carry, xs, **options):
    return lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), carry, xs, **options)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_has_scan_outputs(reverse):
    model = check(lambda c, xs: _scan(c, xs, reverse=reverse), _numbers(3), _numbers(7, 3))
    check_whole(model)
    body = _loop_of(model)
    assert sorted(node.op_type for node in body.node) == ["Add", "Mul", "Tanh"]
    assert len(body.input) == 2  # the carry and a row
    assert len(body.output) == 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 6])
def test_a_scan_of_a_length_that_only_a_run_knows(length, reverse):
    model = check(
        lambda c, xs: _scan(c, xs, reverse=reverse),
        _numbers(3),
        _numbers(length, 3),
        shapes=["3", "t, 3"],
    )
    assert "ScatterND" not in [node.op_type for node in _loop_of(model).node]


def test_the_number_of_the_round_in_a_scan():
    def function(c, xs):
        steps = jnp.arange(xs.shape[0])
        return lax.scan(lambda c, x: (c + x[1] * x[0], c * x[0]), c, (steps, xs), reverse=True)

    check(function, _numbers(3), _numbers(5, 3), rtol=1e-4)
    check(function, _numbers(3), _numbers(5, 3), shapes=["3", "t, 3"], rtol=1e-4)


def test_a_scan_that_reads_no_rows():
    def function(c):
        return lax.scan(lambda c, _: (c * 0.5, c + 1), c, None, length=4)

    check_whole(check(function, _numbers(2, 3)))


def test_the_gradient_of_a_scan():
    def loss(carry, xs):
        last, ys = _scan(carry, xs)
        return jnp.sum(last) + jnp.sum(ys**2)

    model = check(jax.grad(loss, argnums=(0, 1)), _numbers(3), _numbers(5, 3), rtol=1e-4)
    check_whole(model)


def test_scans_in_scans():
    def function(xs):
        def row(carry, x):
            inner, ys = lax.scan(lambda c, y: (c + y, c * y), carry, x)
            return inner, ys

        return lax.scan(row, jnp.float32(0), xs)

    check(function, _numbers(3, 4), rtol=1e-4)


@pytest.mark.parametrize("limit", [-2, 0, 1, 9])
def test_a_limit_that_is_computed(limit):
    def function(x, n):
        return lax.fori_loop(0, n, lambda i, c: c * 0.5 + i, x)

    check(function, _numbers(3), np.int32(limit))


@pytest.mark.parametrize("start", [0.5, 100.0])
def test_a_condition_on_what_is_computed(start):
    def function(x):
        return lax.while_loop(lambda c: c[1] < 50, lambda c: (c[0] + 1, c[1] * 2), (0, x))

    check(function, np.float32(start))


def test_a_counter_that_does_not_begin_at_zero_and_steps():
    def function(x):
        def body(carry):
            i, total = carry
            return i + 3, total + x[i]

        return lax.while_loop(lambda c: c[0] < 10, body, (2, jnp.float32(0)))

    check(function, _numbers(12))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_what_is_counted_wraps_around(dtype):
    def function(x):
        def body(i, carry):
            hashed = (i.astype(jnp.int32) * 1000003).astype(dtype)
            return carry + hashed // jnp.asarray(3, dtype) + (hashed > 5).astype(dtype)

        return lax.fori_loop(0, 300, body, x)

    check(function, np.array(7, dtype))


def test_an_array_that_is_read_while_it_is_written():
    def function(x):
        def body(i, table):
            return table.at[i].set(table[i - 1] + table[i])

        return lax.fori_loop(0, 5, body, x), lax.fori_loop(1, 4, body, x)

    check(function, _numbers(5, 2), rtol=1e-5)


def test_sizes_and_counters_after_the_loop():
    def function(x):
        def body(carry):
            return carry[0] + 1, carry[1] + x.sum()

        return lax.while_loop(lambda c: c[0] < x.shape[0], body, (0, jnp.float32(0)))

    check(function, _numbers(4), shapes=["b"], rtol=1e-5)


def test_branches_in_loops():
    def function(x):
        def body(i, c):
            return lax.cond(i % 2 == 0, lambda: c + x, lambda: c * 0.5)

        return lax.fori_loop(0, 5, body, x)

    check(function, _numbers(3), rtol=1e-5)


def test_what_a_loop_costs_grows_with_its_length():
    sizes = []
    for length in (10, 1000):
        exported = export.export(jax.jit(lambda c, xs: _scan(c, xs)))(
            jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((length, 3), "float32")
        )
        model = bridge.to_onnx(exported)
        assert operations(model)[-1] == "Scan"
        sizes.append(len(model.SerializeToString()))
    assert abs(sizes[0] - sizes[1]) < 64


@pytest.mark.parametrize("reverse", [False, True])
def test_products_with_rows_are_computed_at_once(reverse):
    weight = _numbers(3, 4)

    def function(c, xs):
        def step(c, x):
            return jnp.tanh(c + x @ weight), x.sum() + c

        return lax.scan(step, c, xs, reverse=reverse)

    model = check(function, _numbers(2, 4), _numbers(5, 2, 3), rtol=1e-4, atol=1e-6)
    body = [node.op_type for node in _loop_of(model).node]
    assert "MatMul" in operations(model)
    assert not {"MatMul", "Gather"} & set(body)
    check(function, _numbers(4), _numbers(5, 3), rtol=1e-4, atol=1e-6)
