"""Reductions along dimensions, windows and segments of every dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges
from tests.bridge.tf_operations.checking import check, export_call, operations, run_call


@pytest.fixture(autouse=True)
def _wide():
    with enable_x64(True):
        yield


def _matrix(name):
    return np.resize(edges(name), (6, 7))


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_reductions(name):
    check(
        lambda x: [
            jnp.max(x, 0), jnp.min(x, 1), jnp.max(x), jnp.argmax(x, 0), jnp.argmin(x, 1),
            jnp.any(x != 0, 0), jnp.all(x != 0, 1), jnp.sum(x, 0),
            lax.reduce(x, x[0, 0], lax.max, (1,)),
        ],
        _matrix(name),
        zeros=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_products_and_bits_of_integers(name):
    def reduce(x):
        zero = jnp.asarray(0, x.dtype)
        bits = lax.reduce(x, zero, lax.bitwise_or, (0,)), lax.reduce(x, zero, lax.bitwise_xor, (1,))
        return [jnp.prod(x, 1, dtype=x.dtype), *bits]

    check(reduce, _matrix(name))


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
def test_arrays_without_elements(name):
    check(
        lambda x: [
            jnp.sum(x[:0], 0), jnp.any(x[:0], 0), jnp.concatenate([x[:0], x]), jnp.sort(x[:0], 0),
            jnp.max(x[:, :0], 0), x[:0] @ x.T,
        ],
        _matrix(name),
    )  # fmt: skip


def test_truth_values_are_reduced():
    x = np.array([[True, False], [True, True]])
    check(lambda x: [x.any(0), x.all(1), x.sum(0), x.max(0), x.min(1), jnp.argmax(x, 1)], x)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_segments_with_numbers_out_of_range(name):
    places = jnp.array([0, 1, 0, 3, 9, -1])

    def segments(x):
        ones = jnp.ones((4, 7), x.dtype)
        return [
            jax.ops.segment_max(x, places, 4), jax.ops.segment_min(x, places, 4),
            ones.at[places].mul(x % 3, mode="drop"), ones.at[places].set(x, mode="drop"),
        ]  # fmt: skip

    check(segments, _matrix(name), zeros=False)


def test_a_sum_of_any_number_of_elements():
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, b"), "float32")
    assert operations(lambda x: x.sum(0), x).count("Sum") == 1


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sums_and_means_of_small_floats_are_added_in_float32(name):
    """Of 5,000 numbers near 1 a sum of 16 bits stays at 256 or 2,048, which the next leave."""
    x = np.full(5000, 1.01, name)
    results = run_call(
        export_call(
            lambda x: [
                lax.reduce(x, x[0] * 0, lax.add, (0,)),
                lax.reduce(x, x[0] * 0, lax.add, (0,)) / np.asarray(4096, x.dtype),
                lax.reduce(x[:400], x[0] * 0 + 1, lax.mul, (0,)),
                lax.cumsum(x)[-1],
                lax.reduce_window(x, np.zeros((), x.dtype), lax.add, (4900,), (1,), "VALID")[0],
                lax.reduce_window(
                    x[:4900].reshape(1, 70, 70, 1), np.zeros((), x.dtype), lax.add, (1, 70, 70, 1),
                    (1, 1, 1, 1), "VALID",
                )[0, 0, 0, 0] / np.asarray(4900, x.dtype),
            ],
            x,
        ),
        [x],
    )  # fmt: skip
    one = float(x[0])
    exact = (5000 * one, 5000 * one / 4096, one**400, 5000 * one, 4900 * one, one)
    for got, number in zip(results, exact, strict=True):
        np.testing.assert_allclose(float(got), number, rtol=1e-2)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_means(name):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(name)
    check(lambda x: [x.mean(), x.mean(1), x.mean((0, 2)), x.mean(-1, keepdims=True)], x)


def test_a_mean_of_float16_beyond_its_numbers_is_infinite():
    x = np.full(2048, 100, np.float16)
    check(lambda x: lax.reduce(x, np.float16(0), lax.add, (0,)) / np.float16(2048), x)
