"""Signatures that assign their parameters: what `updates=` says, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module.errors import DtypeError, StructureError

PARAMS = {"w": jnp.arange(3.0), "count": 0}
X = np.array([1, 2, 3, 6], np.float32)


class State(NamedTuple):
    w: jax.Array
    count: jax.Array


def train(state, x):
    w = state["w"] - 0.1 * jnp.mean(x)
    return {"w": w, "count": state["count"] + 1}, {"loss": jnp.sum(w**2)}


def test_a_part_of_the_parameters_is_assigned(tmp_path):
    def apply(variables, x):
        mean = variables["stats"]["mean"]
        new = {"stats": {"mean": 0.5 * mean + 0.5 * x.mean()}}
        return (x - mean) * variables["params"]["w"], new

    params = {"params": {"w": jnp.ones(())}, "stats": {"mean": jnp.zeros(())}}
    bridge.save(apply, tmp_path / "m", params=params, args="f32[b]", updates=1)
    loaded = tf.saved_model.load(tmp_path / "m")
    got = loaded.signatures["serving_default"](x=tf.constant(X))
    assert list(got) == ["output_0"]
    assert loaded.params["stats"]["mean"].numpy() == 1.5
    assert loaded(tf.constant(X)).shape == X.shape


def test_positions_are_given_by_keys_of_the_parameters(tmp_path):
    def step(params, x):
        return x, params["opt"]["m"] + x, params["k"] * 2

    params = {"opt": {"m": jnp.zeros(4), "n": jnp.ones(2)}, "k": jnp.ones(())}
    updates = {"opt/m": 1, "k": 2}
    bridge.save(step, tmp_path / "m", params=params, args="f32[4]", updates=updates)
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded(tf.constant(X)), X)
    np.testing.assert_array_equal(loaded.params["opt"]["m"], X)
    assert loaded.params["k"].numpy() == 2


def test_a_named_tuple_is_returned_bare_or_beside_outputs(tmp_path):
    def step(state, x):
        return State(state.w + x.sum(), state.count + 1)

    def both(state, x):
        return step(state, x), x.max(), x.min()

    params = State(jnp.ones(2), jnp.int32(0))
    model, updates = {"bare": step, "both": both}, {"bare": 0, "both": 0}
    bridge.save(model, tmp_path / "m", params=params, args="f32[b]", updates=updates)
    loaded = tf.saved_model.load(tmp_path / "m")
    loaded.bare(tf.constant(X))
    got = loaded.signatures["both"](x=tf.constant(X))
    assert {name: float(value) for name, value in got.items()} == {"output_0": 6, "output_1": 1}
    assert loaded.params.count.numpy() == 2
    np.testing.assert_array_equal(loaded.params.w, [25, 25])


WRONG = {
    "another dtype": (
        lambda p, x: ({"w": p["w"].astype("int32")}, x),
        0,
        DtypeError,
        "int32.* the parameter w, which is float32",
    ),
    "another shape": (
        lambda p, x: ({"w": p["w"][:2]}, x),
        0,
        StructureError,
        r"the parameter w, which has shape",
    ),
    "another leaf": (
        lambda p, x: ({"v": p["w"]}, x),
        0,
        StructureError,
        "'v' at position 0, and params has",
    ),
    "no such position": (lambda p, x: (p, x), 2, StructureError, "position 2.*tuple of 2"),
    "no tuple": (lambda p, x: x, 1, StructureError, "position 1.*no tuple"),
    "nothing there": (lambda p, x: (None, x), 0, StructureError, "no array at updates=0"),
    "a flag": (lambda p, x: (p, x), True, StructureError, "updates has True"),
    "below zero": (lambda p, x: (p, x), -1, StructureError, "updates has -1"),
    "no text": (lambda p, x: (p, x), {1: 0}, StructureError, "updates has {1: 0}"),
    "twice": (lambda p, x: (p["w"], p["w"]), {"w": 0, "count": 1}, DtypeError, "count"),
    "two parts": (
        lambda p, x: (x, p["w"]),
        {"w": 1, "copy": 1},
        StructureError,
        "one new value for w and copy",
    ),
    "unknown part": (
        lambda p, x: (p["w"], x),
        {"u": 0},
        StructureError,
        "'u' at position 0, and params has",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_new_value_is_refused(case, tmp_path):
    function, updates, error, message = WRONG[case]
    params = PARAMS | ({"copy": jnp.zeros(3)} if case == "two parts" else {})
    with pytest.raises(error, match=message):
        bridge.save(function, tmp_path / "m", params=params, args="f32[4]", updates=updates)
    assert not (tmp_path / "m").exists()


def test_signatures_and_padded_batches_are_checked(tmp_path):
    options = {"params": PARAMS, "args": "f32[b]"}
    with pytest.raises(StructureError, match=r"updates has 'learn'; the signatures are train"):
        bridge.save({"train": train}, tmp_path / "m", updates={"learn": 0}, **options)
    with pytest.raises(StructureError, match=r"train assigns its parameters.*batch_buckets"):
        bridge.save({"train": train}, tmp_path / "m", updates=0, batch_buckets=(1, 8), **options)
    with pytest.raises(StructureError, match="no parameters that updates= could assign"):
        bridge.save(lambda x: (x, x), tmp_path / "m", args="f32[b]", updates=0)
