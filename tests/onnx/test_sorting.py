"""Sorts by one key and several, and the greatest elements, with NaN, infinities and -0."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.onnx.checking import check, operations
from tests.onnx.edges import NUMBERS, edges

DTYPES = [*NUMBERS, "bool"]


def _shuffled(dtype, shape=(3, 30)):
    return np.random.default_rng(0).choice(edges(dtype), shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sorts(dtype):
    def function(x):
        return [
            jnp.sort(x, axis=1),
            jnp.argsort(x, axis=1),
            jnp.argsort(x, axis=0, descending=True),
            lax.sort_key_val(x, lax.broadcasted_iota(jnp.int32, x.shape, 1)),
        ]

    check(function, _shuffled(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_greatest(dtype):
    def function(x):
        values, indices = lax.top_k(x, 7)
        return values, indices, 1 / values if values.dtype.kind == "f" else values

    check(function, _shuffled(dtype), rtol=1e-6)


def test_several_keys():
    numbers, texts = _shuffled("float32", (40,)), np.arange(40, dtype=np.int32) % 3

    def function(x, y):
        return [
            lax.sort((y, x), num_keys=2),
            lax.sort((x, y, jnp.arange(40)), num_keys=2),
            jnp.lexsort((x, y)),
        ]

    check(function, numbers, texts)


def test_integers_take_few_nodes():
    x = np.random.default_rng(0).integers(0, 9, (3, 20)).astype(np.int32)
    assert operations(check(lambda x: jnp.sort(x), x)) == ["TopK", "GatherElements"]
    assert operations(check(lambda x: lax.top_k(x, 3), x)) == ["TopK", "GatherElements", "Cast"]


def test_symbolic_sizes():
    def function(x):
        return jnp.sort(x, axis=0), jnp.argsort(x, axis=1)

    check(function, _shuffled("float32"), shapes=["b, t"])
    check(lambda x: lax.top_k(x, 2), _shuffled("float32"), shapes=["b, 30"])


def test_approximate_greatest_and_least():
    def function(x):
        return lax.approx_max_k(x, 3), lax.approx_min_k(x, 2, reduction_dimension=0)

    check(function, np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))
