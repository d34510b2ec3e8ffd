"""Files that were written once and for all are read by every version, in JAX and in TensorFlow."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

GOLDEN = Path(__file__).parent
FILES = sorted(path.parent for path in GOLDEN.glob("[0-9]*/*/model"))


@pytest.fixture(params=FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def file(request):
    return request.param


@pytest.fixture
def arrays(file):
    """`arrays(key, kind)`: the leaves, in their order."""
    with np.load(file / "values.npz") as stored:
        values = dict(stored)

    def of(key, kind):
        count = sum(name.startswith(f"{key}/{kind}/") for name in values)
        return [values[f"{key}/{kind}/{index}"] for index in range(count)]

    return of


def _all_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_there_are_some():
    assert len(FILES) >= 4


def test_loaded_by_jax(file, arrays):
    model = bridge.load(file / "model")
    assert set(model.signatures) == {"predict", "norm"}
    for key, signature in model.signatures.items():
        _all_close(jax.tree.leaves(signature(*arrays(key, "argument"))), arrays(key, "result"))


def test_gradients_in_jax(file, arrays):
    for key, signature in bridge.load(file / "model").signatures.items():
        if not signature.exported.has_vjp():
            assert file.name == "without_gradients"
            continue
        x, n = arrays(key, "argument")

        def total(params, x, call=signature.exported.call, n=n):
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(call(params, x, n)))

        found = jax.grad(total, argnums=(0, 1), allow_int=True)(signature.params, x)
        leaves = [leaf for leaf in jax.tree.leaves(found) if leaf.dtype != jax.dtypes.float0]
        _all_close(leaves, arrays(key, "gradient"))


def test_loaded_by_tensorflow(file, arrays):
    with tf.device("/CPU:0"):
        loaded = tf.saved_model.load(file / "model")
        for key in ("predict", "norm"):
            results = getattr(loaded, key)(*map(tf.constant, arrays(key, "argument")))
            _all_close(tf.nest.flatten(results), arrays(key, "result"))


def test_looked_at(file):
    report = bridge.inspect(file / "model")
    assert [signature.key for signature in report.signatures] == ["predict", "norm"]
