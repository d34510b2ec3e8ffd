"""`convert` on TensorFlow's variables, which calls assign."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
from xla_call_module.errors import ArgumentError, DtypeError, StructureError

X = tf.constant([1.0, 2.0, 3.0])


def step(state, x):
    new = {"w": state["w"] + x.sum(), "n": state["n"] + 1}
    return new, {"loss": (state["w"] * x).sum()}


def _variables():
    return {"w": tf.Variable(tf.ones(3)), "n": tf.Variable(0)}


@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "compiled"])
def test_a_call_assigns_and_returns_the_rest(jit_compile):
    variables = _variables()
    call = bridge.convert(step, variables=variables, updates=0)
    if jit_compile is not None:
        call = tf.function(call, jit_compile=jit_compile)
    assert [float(call(X)["loss"]) for _ in range(3)] == [6, 42, 78]
    assert variables["n"].numpy() == 3
    np.testing.assert_array_equal(variables["w"], [19, 19, 19])


def test_variables_have_gradients_at_their_values_before_the_step():
    variables = _variables()
    call = bridge.convert(step, variables=variables, updates=0)
    with tf.GradientTape() as tape:
        loss = call(X)["loss"]
    gradient = tape.gradient(loss, variables["w"])
    np.testing.assert_array_equal(gradient, X)


def test_a_module_is_saved_and_goes_on(tmp_path):
    module = tf.Module()
    module.state = _variables()
    call = bridge.convert(step, variables=module.state, updates=0)
    module.step = tf.function(call, input_signature=[tf.TensorSpec([3], tf.float32, "x")])
    module.step(X)
    tf.saved_model.save(module, tmp_path / "m", signatures={"step": module.step})
    loaded = tf.saved_model.load(tmp_path / "m")
    assert loaded.signatures["step"](X)["loss"] == 42
    live = bridge.load(tmp_path / "m").stateful()
    assert live.step(X.numpy())["loss"] == 42
    assert live.params["n"] == 2


def test_what_is_exported_and_what_only_reads_take_variables_too():
    variables = _variables()
    exported = export.export(jax.jit(step))({"w": jnp.ones(3), "n": jnp.int32(0)}, jnp.ones(3))
    bridge.convert(exported, variables=variables, updates=0)(X)
    assert variables["n"].numpy() == 1
    read = bridge.convert(lambda state, x: state["w"] * x, variables=variables)
    np.testing.assert_array_equal(read(X), 7 * X)
    assert variables["n"].numpy() == 1


def test_threads_lose_no_eager_step():
    variables = _variables()
    call = bridge.convert(step, variables=variables, updates=0)
    threads = [threading.Thread(target=lambda: [call(X) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert variables["n"].numpy() == 200


def test_functions_on_the_same_variables_have_one_lock():
    """Of steps of several functions none is lost, and who only reads sees no half of one."""
    size = 20_000
    variables = {name: tf.Variable(tf.zeros(size)) for name in "ab"}

    def both(state):
        return {name: value + 1 for name, value in state.items()}, 0

    steps = [
        bridge.convert(lambda s: both(s), variables=variables, updates=0),
        bridge.convert(lambda s: both(s), variables=dict(reversed(variables.items())), updates=0),
        bridge.convert(
            lambda s: ([value + 1 for value in s], 0),
            variables=[variables["b"], variables["a"]], updates=0,
        ),
    ]  # fmt: skip
    read = bridge.convert(lambda state: state["a"] - state["b"], variables=variables)
    torn = []

    def look():
        torn.extend(np.any(read()) for _ in range(100))

    def work(step):
        for _ in range(50):
            step()

    threads = [threading.Thread(target=work, args=[step]) for step in steps * 2]
    threads += [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(torn)
    assert {float(value[0]) for value in variables.values()} == {50.0 * 2 * len(steps)}


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match=r"updates= is for a function of variables"):
        bridge.convert(step, updates=0)
    with pytest.raises(ArgumentError, match=r"variables has a EagerTensor at w; expected tf.Va"):
        bridge.convert(step, variables={"w": X}, updates=0)
    variables = _variables()
    wrong = bridge.convert(lambda s, x: {"n": s["w"]}, variables=variables, updates=0)
    with pytest.raises(
        DtypeError,
        match=r"returns float32\[3\] as the new value of the parameter n, which is int32",
    ):
        wrong(X)
    other = bridge.convert(lambda s, x: (s, x), variables=variables, updates=2)
    with pytest.raises(StructureError, match=r"position 2.*tuple of 2"):
        other(X)
    assert variables["n"].numpy() == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_one_variable_with_two_new_values_is_refused(compiled):
    tied = tf.Variable([1.0, 2.0])
    variables = {"a": tied, "b": tied, "n": tf.Variable(0)}
    call = bridge.convert(
        lambda s: ({"a": s["a"] + 1, "b": s["b"] * 3}, s["n"] + 1), variables=variables, updates=0
    )
    with pytest.raises(
        StructureError, match=r"new values for a and for b, which are the same tf.Var"
    ):
        (tf.function(call, jit_compile=True) if compiled else call)()
    np.testing.assert_array_equal(tied, [1, 2])
    # It may be read twice, and assigned by one of its names.
    call = bridge.convert(
        lambda s: (s["n"] + 1, s["a"] + s["b"]), variables=variables, updates={"n": 0, "a": 1}
    )
    call()
    np.testing.assert_array_equal(tied, [2, 4])
    same = bridge.convert(lambda s: (s["n"], s["a"]), variables=variables, updates={"a": 1, "b": 1})
    with pytest.raises(StructureError, match="one new value for a and b"):
        same()
