"""Keys of parameters and inputs of every kind of letter, in files of every kind."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import bridge
from bridge.litert.runtime import Runtime
from tests.bridge.onnx.checking import run
from xla_call_module.errors import StructureError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

KEYS = [
    "größe", "ä", "ß", "日本", "e\u0301\u0303", "ﬁ", "👍", "\u200b", "a b", "a\tb", "a\nb", "a\0b",
    "x(y", "a:0", "a/b", "a/../b", "a\\b", "a//b", "b/", "a>b", ">", "a,b", "a;b", "<b>",
    "~", "", "^x", "-m", ".d", "..", ".S", "_u", "$x", "%s", "{0}", "&", "1", "n" * 3000,
    "/.ATTRIBUTES/VARIABLE_VALUE",
]  # fmt: skip
PARAMS = {key: np.full(2, n + 1, np.float32) for n, key in enumerate(KEYS)}
INPUTS = {key: np.array([n, 2], np.float32) for n, key in enumerate(KEYS)}
SPECS = {key: jax.ShapeDtypeStruct((2,), "float32") for key in KEYS}
EXPECTED = {key: PARAMS[key] * INPUTS[key] + 3 * INPUTS["größe"] for key in KEYS}
both_operations = pytest.mark.parametrize("operations", ["xla", "tensorflow"])


def größe(params, inputs):
    """Each input times its parameter, and what a loop makes of one of them."""
    count = lax.fori_loop(0, 3, lambda i, total: total + inputs["größe"], jnp.zeros(2))
    return {key: params[key] * inputs[key] + count for key in inputs}


def _assert_expected(found):
    assert set(found) == set(KEYS)
    for key, value in found.items():
        np.testing.assert_array_equal(value, EXPECTED[key], err_msg=key)


@both_operations
def test_a_file_that_every_loader_reads(tmp_path, operations):
    path = tmp_path / "model"
    bridge.save(größe, path, params=PARAMS, args=(SPECS,), operations=operations)
    for folder in (path, tmp_path / "again"):
        loaded = tf.saved_model.load(folder)
        tensors = {key: tf.constant(value) for key, value in INPUTS.items()}
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            found = loaded(tensors)
            total = tf.add_n([tf.reduce_sum(value) for value in found.values()])
        _assert_expected(found)
        for key, gradient in tape.gradient(total, tensors).items():
            extra = 3 * len(KEYS) if key == "größe" else 0
            np.testing.assert_array_equal(gradient, PARAMS[key] + extra, err_msg=key)
        (signature,) = loaded.signatures.values()
        assert len(signature.structured_input_signature[1]) == len(KEYS)
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        if folder == path:
            tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)


@both_operations
def test_the_keys_come_back(tmp_path, operations):
    path = tmp_path / "model"
    bridge.save(größe, path, params=PARAMS, args=(SPECS,), operations=operations)
    loaded = bridge.load(path)
    assert set(loaded.params) == set(KEYS)
    _assert_expected(loaded(INPUTS))
    _assert_expected(bridge.to_jax(path)(loaded.params, INPUTS))
    bridge.verify(path)


@both_operations
def test_state_of_such_keys(tmp_path, operations):
    def step(state, x):
        return {key: value + x for key, value in state.items()}, x

    state = dict.fromkeys(KEYS, np.zeros(2, np.float32))
    path = tmp_path / "model"
    bridge.save(step, path, params=state, updates=0, args="f32[2]", operations=operations)
    loaded = tf.saved_model.load(path)
    loaded.signatures["serving_default"](x=tf.ones(2))
    assert len(loaded.variables) == len(KEYS)
    for variable in loaded.variables:
        np.testing.assert_array_equal(variable, np.ones(2))


@both_operations
def test_a_converted_function(operations):
    function = bridge.convert(lambda inputs: größe(PARAMS, inputs), operations=operations)
    tensors = {key: tf.constant(value) for key, value in INPUTS.items()}
    _assert_expected(function(tensors))
    _assert_expected(tf.function(function)(tensors))


@pytest.mark.parametrize("name", ["größe", "日本 x(y", "\u200b", "<lambda>"])
@both_operations
def test_names_of_functions(tmp_path, name, operations):
    def function(x):
        return lax.fori_loop(0, 3, lambda i, total: total + x, x)

    function.__name__ = function.__qualname__ = name
    bridge.save(function, tmp_path / "model", args="f32[b]", operations=operations)
    loaded = tf.saved_model.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded(tf.ones(2)), np.full(2, 4))
    converted = tf.function(bridge.convert(function, operations=operations))
    np.testing.assert_array_equal(converted(tf.ones(2)), np.full(2, 4))


def test_onnx():
    model = bridge.to_onnx(größe, params=PARAMS, args=(SPECS,))
    leaves = jax.tree.leaves(INPUTS)
    for found, wanted in zip(run(model, leaves), jax.tree.leaves(EXPECTED), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_litert():
    model = bridge.to_litert(größe, params=PARAMS, args=(SPECS,), verify=False)
    with Runtime(model) as runtime:
        (signature,) = runtime.contents.signatures
        names = [tensor.name for tensor in signature.inputs]
        found = runtime.run(dict(zip(names, jax.tree.leaves(INPUTS), strict=True)))
    for got, wanted in zip(found.values(), jax.tree.leaves(EXPECTED), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("place", ["params", "args", "result"])
def test_half_a_character_is_refused(tmp_path, place):
    key = "\ud800"
    params = {key if place == "params" else "a": np.ones(2, np.float32)}
    spec = {key if place == "args" else "x": jax.ShapeDtypeStruct((2,), "float32")}

    def function(params, inputs):
        (scale,), (x,) = params.values(), inputs.values()
        return {key if place == "result" else "y": scale * x}

    with pytest.raises(StructureError, match=r"half of a character .*To do: take other letters"):
        bridge.save(function, tmp_path / "model", params=params, args=(spec,))
