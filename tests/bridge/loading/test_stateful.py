"""Loaded signatures that assign: pure as they are, and with parameters of their own."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module.errors import StructureError

X = np.array([1, 2, 3], np.float32)
PARAMS = {"w": jnp.ones(3), "key": jax.random.key(7), "n": jnp.int32(0)}


def train(state, x):
    key, own = jax.random.split(state["key"])
    noise = jax.random.normal(own, (3,))
    w = state["w"] - 0.1 * x * noise
    return {"w": w, "key": key, "n": state["n"] + 1}, (jnp.sum(w), None)


def predict(state, x):
    return state["w"] * x


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stateful") / "model"
    model, args = {"train": train, "predict": predict}, "f32[3]"
    bridge.save(model, folder, params=PARAMS, args=args, updates={"train": 0})
    return folder


def test_a_signature_that_assigns_is_the_function_that_was_exported(written):
    model = bridge.load(written)
    new, (total, nothing) = model.signatures["train"](X)
    want, (wanted, _) = jax.jit(train)(PARAMS, X)
    assert nothing is None
    assert total == wanted
    np.testing.assert_array_equal(new["w"], want["w"])
    assert jnp.array_equal(jax.random.key_data(new["key"]), jax.random.key_data(want["key"]))
    again, _ = model.signatures["train"].exported.call(new, X)
    assert again["n"] == 2
    assert model.params["n"] == 0
    assert list(model.signatures["train"].outputs) == ["output_0"]


def test_a_stateful_model_goes_on_as_tensorflow_does(written):
    live, loaded = bridge.load(written).stateful(), tf.saved_model.load(written)
    for _ in range(5):
        got, nothing = live.train(X)
        assert nothing is None
        np.testing.assert_allclose(got, loaded.train(tf.constant(X))[0], rtol=1e-6)
        np.testing.assert_allclose(live.predict(X), loaded.predict(tf.constant(X)), rtol=1e-6)
    assert live.params["n"] == 5
    np.testing.assert_allclose(live.params["w"], loaded.params["w"], rtol=1e-6)
    assert live.signatures.keys() == {"train", "predict"}
    assert repr(live.train) == "train(x: float32[3])"


def test_stateful_models_of_one_file_have_their_own_parameters(written):
    model = bridge.load(written)
    one, other = model.stateful(), model.stateful()
    one.train(X)
    assert (one.params["n"], other.params["n"], model.params["n"]) == (1, 0, 0)


def test_gradients_are_those_of_outputs_and_of_the_new_state(written):
    exported = bridge.load(written).signatures["train"].exported

    def both(w):
        new, (total, _) = exported.call({**PARAMS, "w": w}, X)
        return total + (new["w"] ** 2).sum()

    def wanted(w):
        new, (total, _) = train({**PARAMS, "w": w}, X)
        return total + (new["w"] ** 2).sum()

    w = jnp.arange(3.0)
    np.testing.assert_allclose(jax.grad(both)(w), jax.grad(wanted)(w), rtol=1e-6)


def test_threads_lose_no_step(written):
    live = bridge.load(written).stateful()

    def work():
        for _ in range(50):
            live.train(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live.params["n"] == 200


def test_what_cannot_be_kept_is_refused(written):
    live = bridge.load(written).stateful()
    with pytest.raises(StructureError, match=r"which it cannot do inside of jax.jit"):
        jax.jit(lambda x: live.train(x)[0])(X)
    assert live.params["n"] == 0
    with pytest.raises(AttributeError, match="no signature 'learn'; it has train, predict"):
        _ = live.learn


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Return the folder of what TensorFlow has written of a module that assigns by itself."""

    class Counter(tf.Module):
        def __init__(self):
            super().__init__()
            self.w, self.n = tf.Variable(tf.ones(3)), tf.Variable(0)
            self.step = bridge.convert(lambda w, n, x: (w + x, n + 1, (w * x).sum()))

        @tf.function(input_signature=[tf.TensorSpec([3], tf.float32, "x")])
        def assigns(self, x):
            w, n, total = self.step(self.w.read_value(), self.n.read_value(), x)
            self.w.assign(w)
            self.n.assign(n)
            return {"total": total}

        @tf.function(input_signature=[tf.TensorSpec([3], tf.float32, "x")])
        def adds(self, x):
            _, n, total = self.step(self.w.read_value(), self.n.read_value(), x)
            self.n.assign_add(n)
            return {"total": total}

        @tf.function(input_signature=[tf.TensorSpec([3], tf.float32, "x")])
        def sometimes(self, x):
            w, _, total = self.step(self.w.read_value(), self.n.read_value(), x)
            if total > 0:
                self.w.assign(w)
            return {"total": total}

        @tf.function(input_signature=[tf.TensorSpec([3], tf.float32, "x")])
        def twice(self, x):
            for _ in range(2):
                w, _, total = self.step(self.w.read_value(), self.n.read_value(), x)
                self.w.assign(w)
            return {"total": total}

    module = Counter()
    folder = tmp_path_factory.mktemp("foreign") / "model"
    signatures = {name: getattr(module, name) for name in ("assigns", "adds", "sometimes", "twice")}
    tf.saved_model.save(module, folder, signatures=signatures)
    return folder


def test_what_tensorflow_assigns_by_itself_is_known(foreign):
    model = bridge.load(foreign)
    assert list(model.signatures) == ["assigns"]
    assert "AssignAddVariableOp" in model.others["adds"]
    assert "sometimes" in model.others["sometimes"]
    assert "twice" in model.others["twice"]
    new, outputs = model.signatures["assigns"](X)
    assert outputs == {"total": 6}
    assert new.keys() == {"w", "n"}
    live = model.stateful()
    live.assigns(X)
    assert live.assigns(X) == {"total": 6 + 14}
    assert live.params["n"] == 2
    np.testing.assert_array_equal(live.params["w"], 1 + 2 * X)
