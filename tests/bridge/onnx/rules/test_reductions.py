"""Reductions over dtypes, with NaN and infinities, along one and several dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations
from tests.bridge.onnx.edges import FLOATS, INTEGERS, NUMBERS, edges

REDUCERS = {"add": lax.add, "max": lax.max, "min": lax.min, "mul": lax.mul}
STARTS = {"add": 0, "mul": 1}


def _cube(dtype):
    """Numbers of a dtype, NaN among them, in three dimensions."""
    numbers = edges(dtype)
    finite = numbers[np.isfinite(numbers.astype(np.float64))] if dtype in FLOATS else numbers
    random = np.random.default_rng(0)
    cube = random.choice(finite, (3, 4, 5)).astype(numbers.dtype)
    if dtype in FLOATS:
        cube[0, 1, 2], cube[1, 0, 3], cube[2, 3, 4], cube[2, 0, 0] = np.nan, np.inf, -np.inf, np.nan
    return cube


def _reductions(cube):
    results = {}
    for name, function in REDUCERS.items():
        start = np.array(STARTS.get(name, 0), cube.dtype)
        for axes in [(0,), (2,), (0, 2)]:
            results[name, axes] = lax.reduce(cube, start, function, axes)
    return [results[key] for key in sorted(results)]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_reductions(dtype):
    tolerance = {"float16": 2e-2, "bfloat16": 6e-2}.get(dtype, 1e-5)
    cube = _cube(dtype)
    if dtype in FLOATS:  # their products leave float16
        cube = np.where(
            np.isfinite(cube), np.sign(cube) + cube / np.float32(200).astype(cube.dtype), cube
        )
    check(_reductions, cube, rtol=tolerance)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_least_and_greatest(dtype):
    check(
        lambda x: [f(x, axis=a) for f in (jnp.max, jnp.min) for a in (0, 1, 2, None)], _cube(dtype)
    )


def test_of_booleans():
    flags = np.random.default_rng(0).random((3, 4, 5)) > 0.7
    check(lambda x: [f(x, axis=a) for f in (jnp.any, jnp.all) for a in (0, 2, None)], flags)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_of_bits(dtype):
    def function(cube):
        starts = {lax.bitwise_and: -1, lax.bitwise_or: 0, lax.bitwise_xor: 0}
        return [
            lax.reduce(cube, np.array(start).astype(cube.dtype), reducer, (1,))
            for reducer, start in starts.items()
        ]

    check(function, _cube(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_where_the_extremes_are(dtype):
    def function(cube):
        return [f(cube, axis=axis) for f in (jnp.argmax, jnp.argmin) for axis in (0, 1, 2)]

    check(function, _cube(dtype))


def test_where_the_extremes_are_takes_few_nodes():
    model = check(lambda x: jnp.argmax(x, 1), np.arange(12, dtype=np.int32).reshape(3, 4))
    assert operations(model) == ["ArgMax", "Cast"]
    x = _cube("float32")[0]
    model = check(lambda x: jnp.argmax(x, 1), x, shapes=["b, t"])
    assert operations(model).count("ArgMax") == 2


def test_a_region_that_onnx_does_not_have():
    def combine(x, y):
        (a, b), (c, d) = x, y
        return a * c, b * c + d

    def function(a, b):
        return lax.reduce((a, b), (np.float32(1), np.float32(0)), combine, (1,))

    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, 7), np.float32) for _ in range(2)]
    check(function, *arrays, atol=1e-5)
    model = check(function, *arrays, atol=1e-5, shapes=["b, t"] * 2)
    assert "Loop" in operations(model)


@pytest.mark.parametrize("reducer", [lax.sub, lax.div])
def test_a_region_whose_order_matters(reducer):
    def function(x):
        return lax.reduce(x, np.float32(3), reducer, (0, 1))

    x = np.array([[[0.5], [1], [4]], [[2], [0.25], [3]]], np.float32)
    check(function, x)
    check(function, x, shapes=["a, b, 1"])


def test_products_of_integers_of_symbolic_sizes():
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    check(lambda x: [x.prod(1), x.prod(0), x.prod()], x, shapes=["b, t"])
    check(lambda x: jnp.prod(x, 1, initial=5), x[:, :0], shapes=["b, t"])


def test_nothing_to_reduce():
    check(
        lambda x: [x.sum(1), x.prod(1), jnp.max(x, 1, initial=-3.0)], np.zeros((2, 0), np.float32)
    )
    check(lambda x: [x.sum(0), x.sum(1), jnp.max(x, 1)], np.zeros((0, 2), np.int32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32", "int64", "uint32"])
def test_nothing_to_reduce_in_a_run(dtype):
    """Dynamic sizes that are 0."""

    def function(x):
        rest = x[:, 1:]
        shape = rest.shape
        pair = lax.reduce(
            (rest, lax.broadcasted_iota(np.int32, shape, 1)),
            (_least(x.dtype), np.int32(0)),
            lambda one, other: jax.tree.map(
                lambda a, b: jnp.where((one[0] > other[0]) | (one[0] != one[0]), a, b), one, other
            ),
            (1,),
        )
        found = [jnp.max(rest, 1, initial=0), jnp.min(rest, 1, initial=9), jnp.sum(rest, 1), *pair]
        return [*found, jnp.prod(rest, 1), jnp.any(rest > 1, 1), jnp.all(rest > 1, 1)]

    for size in (1, 3):
        x = np.arange(2 * size).reshape(2, size).astype(jnp.dtype(dtype))
        check(function, x, shapes=["2, n"])


def _least(dtype):
    kind = jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo
    least = -np.inf if kind is jnp.finfo else kind(dtype).min
    return np.array(least).astype(dtype)


def test_symbolic_sizes():
    x = _cube("float32")
    check(lambda x: [x.sum((0, 2)), x.max(1), jnp.mean(x, 0), x.var(2)], x, shapes=["b, t, 5"],
          rtol=1e-5)  # fmt: skip


def test_softmax_of_what_is_not_finite():
    x = np.float32([[1, 2, 3], [np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, -np.inf, -np.inf]])
    check(jax.nn.softmax, x)
