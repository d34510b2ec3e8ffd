"""Sorts by one key and several, and the greatest elements, with NaN, infinities and -0."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations
from tests.bridge.onnx.edges import NUMBERS, edges
from xla_call_module.errors import UnsupportedError

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
    check(lambda x: lax.top_k(x, x.shape[1] // 2), _shuffled("float32"), shapes=["b, 2*t"])


def test_approximate_greatest_and_least():
    def function(x):
        return lax.approx_max_k(x, 3), lax.approx_min_k(x, 2, reduction_dimension=0)

    check(function, np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_signs_of_nans(dtype):
    x = np.concatenate([edges(dtype), -edges(dtype)])

    def function(x):
        values, indices = lax.top_k(x, 40)
        return jnp.isnan(values), indices, jnp.sort(x), jnp.argsort(x), jnp.argmax(x)

    model = check(function, x if dtype != "bfloat16" else x.astype(np.float32))
    assert model.opset_import[0].version == 26
    usual = x[~(np.isnan(x) & np.signbit(x))]
    check(lambda x: lax.top_k(x, 9)[1], usual.astype(np.float32), opset=21)


def test_known_signs_of_nans():
    numbers = np.float32([np.inf, np.nan, -np.nan, -np.inf, 3])
    model = check(lambda x: x + lax.top_k(numbers, 5)[1], np.int32(0))
    assert model.opset_import[0].version == 21


def test_order_of_equal_keys_must_be_somebodys():
    x = np.int32([1, 0, 1])
    check(lambda x: lax.sort((x, x + 1), num_keys=2, is_stable=False), x)
    check(lambda x: lax.sort((x, 3 - x), num_keys=1, is_stable=False), x)
    check(lambda x: lax.sort((x, jnp.arange(3)), num_keys=1, is_stable=False), x)
    with pytest.raises(UnsupportedError, match=r"unstable.*is_stable=True"):
        check(lambda x, y: lax.sort((x, y), num_keys=1, is_stable=False), x, x[::-1])
