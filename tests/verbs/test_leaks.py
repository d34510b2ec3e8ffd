"""Nothing is left of a round of save, load, convert and call; `make bench` makes 2,000 of them."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

ROUNDS = 20
OWN = ("bridge", "jax", "savedmodel", "tensorflow", "xla_call_module")
PARAMS = {"w": np.ones((4, 4), np.float32), "b": np.zeros(4, np.float32)}


def one_round(folder, constant):
    """A function that is new, with a constant of its own, through all of it."""

    def predict(params, x):
        return jnp.tanh(x @ params["w"] + params["b"]) * constant

    x = np.ones((2, 4), np.float32)
    exported = jax.export.export(jax.jit(predict))(PARAMS, x)
    bridge.save(exported, folder / "model", params=PARAMS, overwrite=True)
    expected = bridge.load(folder / "model")(x)
    function = bridge.convert(exported)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        found = function(PARAMS, given)
    assert tape.gradient(found, given) is not None
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.clear_caches()  # which hold a function until others have taken its place


def counted():
    """Count the objects of each class of the project and the frameworks, MLIR's too."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return Counter(k for k in kinds if str(k.__module__).startswith(OWN))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells the open files")
def test_rounds_leave_nothing(tmp_path):
    gc.unfreeze()  # or what was there before the tests would not be counted
    for number in range(4):
        one_round(tmp_path, number)
    objects, files = counted(), len(os.listdir("/proc/self/fd"))  # after what is garbage has gone
    for number in range(ROUNDS):
        one_round(tmp_path, 10.0 + number)
    grown = counted() - objects
    assert len(os.listdir("/proc/self/fd")) <= files
    assert {str(kind): count for kind, count in grown.items() if count >= ROUNDS // 2} == {}
