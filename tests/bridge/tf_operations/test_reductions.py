"""Reductions along dimensions, windows and segments of every dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges
from tests.bridge.tf_operations.checking import check, operations
from tests.x64 import enable_x64


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


def test_small_floats_are_summed_in_float32():
    x = np.full((1, 4096), 1 + 2**-7, jnp.bfloat16)
    check(lambda x: lax.reduce_sum(x, (1,)), x, rtol=0.01)
