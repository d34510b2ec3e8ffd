"""Files that were found in 2026 to be written, read or refused otherwise than they should be."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge import DtypeError, StructureError

ONE = np.ones(2, np.float32)


def test_parameters_with_empty_keys(tmp_path, preloaded):
    """A name that ends with a slash TensorFlow has without it."""
    params = {"": ONE, "d": ONE, "d/": 3 * ONE, "e": {"": ONE, "x": {"": {"": ONE}}}}
    total = lambda params, x: sum(jax.tree.leaves(params)) * x  # noqa: E731
    bridge.save(total, tmp_path / "model", params=params, args="f32[2]")
    report = bridge.verify(tmp_path / "model", quick=True)
    assert [(row.order, row.problem) for row in report.rows] == [(0, ""), (1, "")]


def test_a_parameter_that_nothing_takes(tmp_path, preloaded):
    """TensorFlow's signature does not have its variable."""
    params = {"unused": np.float32(2), "w": np.float32(3)}
    bridge.save(lambda params, x: params["w"] * x, tmp_path / "m", params=params, args="f32[2]")
    assert bridge.verify(tmp_path / "m", quick=True).passed


def test_a_key_of_a_file_that_fits_two_parameters(tmp_path):
    params = {"a/b": 0 * ONE, "a": {"b": 0 * ONE}}
    apart = lambda p, x: x + p["a/b"] - p["a"]["b"]  # noqa: E731
    bridge.save(apart, tmp_path / "m", params=params, args="f32[2]")
    np.savez(tmp_path / "new.npz", **{"a/b": ONE})
    with pytest.raises(StructureError, match=r"'a/b'.* several variables of that name"):
        bridge.update(tmp_path / "m", tmp_path / "new.npz")
    bridge.update(tmp_path / "m", {"a": {"b": ONE}})  # the keys of a pytree say which
    np.testing.assert_array_equal(bridge.load(tmp_path / "m")(ONE), 0 * ONE)


def test_a_list_of_more_than_ten_parameters(tmp_path):
    params = [np.float32(number) for number in range(12)]
    weigh = lambda params, x: sum(p * 2.0**n for n, p in enumerate(params)) + x  # noqa: E731
    bridge.save(weigh, tmp_path / "m", params=params, args="f32[]")
    loaded = bridge.load(tmp_path / "m")
    assert (loaded.params, loaded(1.0)) == (params, weigh(params, 1.0))


def test_two_new_values_of_one_parameter(tmp_path):
    def step(params, x):
        new = params["w"]["a"] + x
        return {"a": new}, new * 2

    options = {"params": {"w": {"a": np.float32(1)}}, "args": "f32[]"}
    with pytest.raises(StructureError, match="two new values for w/a, by updates="):
        bridge.save(step, tmp_path / "m", updates={"w": 0, "w/a": 1}, **options)


@pytest.mark.parametrize("value", [0.5, 1.0, 1j])
def test_a_fraction_as_the_default_of_a_flag(tmp_path, value):
    options = {"args": "f32[], bool[]", "defaults": {"on": value}}
    with pytest.raises(DtypeError, match=r"The default of on is .*; expected bool\[\]"):
        bridge.save(lambda x, on: x * on, tmp_path / "m", **options)


def test_the_address_of_a_local_file(tmp_path):
    address = f"file://{tmp_path}/m"
    assert bridge.save(jnp.cos, address, args="f32[]").path == address
    assert bridge.load(address)(0.0) == bridge.load(tmp_path / "m")(0.0) == 1


def test_constants_of_the_same_bytes(tmp_path):
    """Of another shape or dtype they are other constants."""
    table = np.arange(64, dtype=np.float32)
    arrays = (table, table.reshape(8, 8), table.view(np.int32))
    several = lambda x: [jnp.asarray(a) * x.astype(a.dtype) for a in arrays]  # noqa: E731
    bridge.save(several, tmp_path / "m", args="f32[]", hoist_constants=256)
    found = tf.saved_model.load(tmp_path / "m")(tf.constant(2.0))
    for array, wanted in zip(found, several(jnp.float32(2)), strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_what_a_killed_writer_of_another_name_left(tmp_path):
    names = [f".{name}" for name in ("a.jax-tf-bridge-01", "b.jax-tf-bridge-02.old", "c")]
    for name in names:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    bridge.save(jnp.sin, tmp_path / "m", args="f32[]")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [*names[1:], "m"]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, X: x + X, ["x", "X_1"]),  # noqa: N803 - the case is the point
        (lambda self, y: self * y, ["self_", "y"]),
        (lambda x_1, X, x: x + x_1 + X, ["x_1", "X", "x_2"]),  # noqa: N803
        (lambda é, x: é * x, None),
    ],
)
def test_names_that_tensorflow_does_not_pass(tmp_path, function, inputs):
    args = ", ".join(["f32[]"] * function.__code__.co_argcount)
    saved = bridge.save(function, tmp_path / "m", args=args, gradient_order=0)
    names = [spec.name for spec in saved.signatures[0].inputs]
    assert names == (inputs or names)
    run = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    assert run(**dict.fromkeys(names, tf.constant(1.0)))["output_0"] >= 1
