"""Several operations that are one node."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from tests.bridge.tf_operations.checking import check, operations

_X = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


def test_means():
    check(lambda x: [x.mean(), x.mean(1), x.mean((0, 2)), x.mean(-1, keepdims=True)], _X)
    assert operations(lambda x: x.mean(-1, keepdims=True), _X) == ["Mean"]


def test_a_sum_by_another_number_is_no_mean():
    assert "Mean" not in operations(lambda x: x.sum(-1) / 4, _X)
    check(lambda x: x.sum(-1) / 4, _X)


def test_a_batch_norm_of_stored_statistics():
    def norm(x, mean, variance, scale, bias):
        return (x - mean) * (scale / jnp.sqrt(variance + 1e-5)) + bias

    random = np.random.default_rng(0)
    x = random.normal(size=(2, 5, 5, 3)).astype(np.float32)
    rows = [(1 + random.random(3)).astype(np.float32) for _ in range(4)]
    check(norm, x, *rows, rtol=1e-5, of_largest=True)
    names = operations(norm, x, *rows)
    assert [names.count(name) for name in ("Mul", "Sub", "AddV2")] == [2, 1, 2]


def test_statistics_of_the_images_themselves_are_subtracted_first():
    def norm(x, scale, bias):
        return (x - x.mean((0, 1, 2))) * scale + bias

    x = (1e4 + np.random.default_rng(0).normal(size=(2, 5, 5, 3))).astype(np.float32)
    check(norm, x, np.float32([1, 2, 3]), np.float32([0, 1, 0]), rtol=1e-3, of_largest=True)


def test_the_mean_and_variance_of_a_layer_norm():
    def norm(x):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)

    check(norm, _X, rtol=1e-5)
    assert operations(norm, _X).count("Mean") == 2
