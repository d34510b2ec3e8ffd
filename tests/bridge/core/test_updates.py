"""Signatures that assign their parameters: what `updates=` says, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from xla_call_module.errors import DtypeError, StructureError

PARAMS = {"w": jnp.arange(3.0), "count": 0}
X = np.array([1, 2, 3, 6], np.float32)


class State(NamedTuple):
    w: jax.Array
    count: jax.Array


def train(state, x):
    w = state["w"] - 0.1 * jnp.mean(x)
    return {"w": w, "count": state["count"] + 1}, {"loss": jnp.sum(w**2)}


def predict(state, x):
    return state["w"].sum() + x


def reset(state):
    return {"w": jnp.zeros(3), "count": jnp.int32(0)}


ARGS = {"train": "f32[b]", "predict": "f32[b]", "reset": ()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates") / "model"
    model = {"train": train, "predict": predict, "reset": reset}
    bridge.save(model, folder, params=PARAMS, args=ARGS, updates={"train": 0, "reset": 0})
    return folder


def _values(loaded):
    return {name: np.asarray(value) for name, value in loaded.params.items()}


def test_a_call_in_tensorflow_assigns_and_returns_the_rest(written):
    loaded = tf.saved_model.load(written)
    state = PARAMS
    for call in (loaded.signatures["train"], loaded.train):
        got = call(x=tf.constant(X))
        state, want = jax.jit(train)(state, X)
        assert got.keys() == want.keys()
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-6)
        jax.tree.map(np.testing.assert_allclose, _values(loaded), dict(state))
    np.testing.assert_allclose(
        loaded.predict(tf.constant(X)), jax.jit(predict)(state, X), rtol=1e-6
    )


def test_a_signature_that_returns_nothing_else_has_one_scalar(written):
    loaded = tf.saved_model.load(written)
    loaded.train(tf.constant(X))
    assert {name: bool(value) for name, value in loaded.signatures["reset"]().items()} == {
        "updated": True
    }
    np.testing.assert_array_equal(_values(loaded)["w"], np.zeros(3))
    loaded.train(tf.constant(X))
    assert loaded.reset() is None
    assert _values(loaded)["count"] == 0


def test_what_tensorflow_compiles_has_the_same_bits(written):
    plain, compiled = tf.saved_model.load(written), tf.saved_model.load(written)
    step = tf.function(lambda x: compiled.train(x), jit_compile=True)
    for _ in range(10):
        np.testing.assert_array_equal(plain.train(tf.constant(X))["loss"], step(X)["loss"])
    jax.tree.map(np.testing.assert_array_equal, _values(plain), _values(compiled))


@pytest.mark.parametrize("way", ["function", "signature"])
def test_outputs_have_gradients_at_the_state_before_the_step(written, way):
    loaded = tf.saved_model.load(written)
    x = tf.constant(X)
    call = loaded.train if way == "function" else loaded.signatures["train"]
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = call(x=x)["loss"]
    got = tape.gradient(loss, [loaded.params["w"], x])
    want = jax.grad(lambda w, x: train({"w": w, "count": 0}, x)[1]["loss"], (0, 1))(PARAMS["w"], X)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


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


def test_copies_of_the_file_assign_as_it_does(written, tmp_path):
    copies = tmp_path / "read", tmp_path / "retargeted"
    savedmodel.write(savedmodel.read(written), copies[0])
    made = bridge.retarget(written, to=copies[1], tensorflow="2.16", gradient_order=0)
    assert "train(x: float32[b]) -> loss: float32[], for cpu, cuda, tpu, assigns 2 vari" in str(
        made
    )
    for copy in copies:
        loaded = tf.saved_model.load(copy)
        loaded.signatures["train"](x=tf.constant(X))
        loaded.train(x=tf.constant(X))
        assert _values(loaded)["count"] == 2
        assigned = {s.key: s.assigned for s in bridge.inspect(copy).signatures}
        assert assigned == {"train": ("count", "w"), "predict": (), "reset": ("count", "w")}


def test_onnx_has_the_new_values_as_outputs(written, tmp_path):
    model = bridge.load(written).signatures["reset"].exported
    made = bridge.save_onnx(model, tmp_path / "m.onnx", params=PARAMS)
    assert [output.name for output in made.signatures[0].outputs] == ["count", "w"]
