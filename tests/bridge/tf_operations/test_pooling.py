"""Reductions of windows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges
from tests.bridge.tf_operations.checking import check, operations


def _max_pool(x, padding="SAME"):
    least = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, np.array(least, x.dtype), lax.max, window, window, padding)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_maxima_of_windows(name):
    with enable_x64(True):
        x = np.resize(edges(name), (1, 7, 6, 1))
        check(lambda x: [_max_pool(x), _max_pool(x, "VALID")], x, zeros=False)


@pytest.mark.parametrize("name", FLOATS)
def test_maxima_behind_a_relu_keep_nan(name):
    with enable_x64(True):
        x = np.resize(edges(name), (1, 7, 6, 1))
        check(lambda x: _max_pool(jax.nn.relu(x)), x, zeros=False)


def test_a_pool_behind_a_relu_is_one():
    x = np.ones((1, 4, 4, 1), np.float32)
    assert "MaxPool" in operations(lambda x: _max_pool(jax.nn.relu(x)), x)


def test_sums_of_windows_and_running_sums():
    x = np.random.default_rng(0).normal(size=(2, 9)).astype(np.float32)
    check(
        lambda x: [
            lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 2), "VALID"), jnp.cumsum(x, 1),
            lax.cumsum(x, 1, reverse=True), lax.cummax(x, 0), lax.cumlogsumexp(x, 1),
        ],
        x,
        rtol=1e-5,
    )  # fmt: skip


def test_means_of_windows_are_one_node():
    def mean(x):
        window = (1, 2, 3, 1)
        return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 6

    x = np.random.default_rng(0).normal(size=(2, 5, 6, 3)).astype(np.float32)
    check(mean, x)
    assert operations(mean, x) == ["AvgPool"]


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("number", [-1.0, np.nan, np.inf])
def test_the_gradient_of_a_pool_behind_a_relu(padding, number):
    """Many elements are 0, of which the first gets all, and NaN is passed over in XLA's way."""
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    x[0, 2, 3, 1] = number

    def loss(x):
        return (_max_pool(jax.nn.relu(x), padding) * jnp.arange(1.0, 4)).sum()

    check(jax.grad(loss), x)
    # JAX puts padding around the image before.
    assert ("MaxPoolGrad" in operations(jax.grad(loss), x)) == (padding == "VALID")


def test_the_gradient_of_a_pool():
    x = np.random.default_rng(0).normal(size=(1, 6, 6, 2)).astype(np.float32)
    check(jax.grad(lambda x: (_max_pool(x) ** 2).sum()), x)
