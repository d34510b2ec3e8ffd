"""TensorFlow functions in JAX programs that are exported, saved, and converted back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

X = np.linspace(0.1, 1.5, 6, dtype=np.float32).reshape(2, 3)
RTOL = 2e-5


def in_tensorflow(x):
    return {"y": tf.sin(x) * x, "n": tf.argmax(x, axis=1, output_type=tf.int32)}


def in_jax(x):
    return {"y": jnp.sin(x) * x, "n": jnp.argmax(x, axis=1)}


def outer(function):
    """A JAX program around a call of a TensorFlow function."""
    return lambda x: function(x * 2.0)["y"].sum() + 1.0


@pytest.fixture(scope="module")
def called():
    return bridge.call_tf(in_tensorflow)


def test_an_export_is_serialized_and_read_back(called):
    exported = jax.export.export(jax.jit(jax.value_and_grad(outer(called))))(X)
    read = jax.export.deserialize(exported.serialize())
    value, gradient = read.call(X)
    expected_value, expected_gradient = jax.value_and_grad(outer(in_jax))(X)
    np.testing.assert_allclose(value, expected_value, rtol=RTOL)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=RTOL)


def test_an_export_has_a_vjp_and_every_platform(called):
    exported = jax.export.export(jax.jit(called), platforms=("cpu", "cuda", "rocm", "tpu"))(X)
    np.testing.assert_allclose(exported.call(X)["y"], in_jax(X)["y"], rtol=RTOL)
    cotangents = {"y": jnp.ones_like(X), "n": np.zeros(2, jax.dtypes.float0)}
    (found,) = jax.vjp(lambda x: exported.call(x)["y"], X)[1](cotangents["y"])
    np.testing.assert_allclose(found, jax.grad(lambda x: in_jax(x)["y"].sum())(X), rtol=RTOL)


def test_a_saved_model_of_it_runs_in_jax_and_in_tensorflow(called, tmp_path):
    exported = jax.export.export(jax.jit(called), platforms=("cpu",))(X)
    bridge.save(exported, tmp_path / "model")
    loaded = bridge.load(tmp_path / "model")
    np.testing.assert_allclose(loaded(X)["y"], in_jax(X)["y"], rtol=RTOL)
    np.testing.assert_allclose(
        jax.grad(lambda x: loaded(x)["y"].sum())(X),
        jax.grad(lambda x: in_jax(x)["y"].sum())(X),
        rtol=RTOL,
    )
    again = tf.saved_model.load(str(tmp_path / "model"))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = again(x)["y"]
    np.testing.assert_allclose(y, in_jax(X)["y"], rtol=RTOL)
    expected = jax.grad(lambda x: in_jax(x)["y"].sum())(X)
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=RTOL)


def test_an_export_with_integer_results_has_gradients(called, tmp_path):
    exported = jax.export.export(jax.jit(called), platforms=("cpu",))(X)
    bridge.save(exported, tmp_path / "model")
    loaded = bridge.load(tmp_path / "model")
    expected = jax.grad(lambda x: in_jax(x)["y"].sum())(X)
    np.testing.assert_allclose(jax.grad(lambda x: loaded(x)["y"].sum())(X), expected, rtol=RTOL)
    np.testing.assert_array_equal(loaded(X)["n"], in_jax(X)["n"])


@pytest.mark.parametrize("function", [tf.math.erf, tf.nn.gelu, tf.math.asin, tf.math.sinh])
def test_what_stablehlo_has_no_operation_of_is_exported(function):
    called, x = bridge.call_tf(function), X / 2
    exported = jax.export.export(jax.jit(called), platforms=("cpu", "tpu"))(x)
    read = jax.export.deserialize(exported.serialize())
    for run in (read.call, bridge.convert(read), jax.jit(called), bridge.convert(called)):
        np.testing.assert_allclose(run(x), function(x), rtol=1e-5)


def test_there_and_back_three_deep_in_jax():
    function = in_jax
    for _ in range(3):
        function = bridge.call_tf(bridge.convert(function))
        np.testing.assert_allclose(jax.jit(function)(X)["y"], in_jax(X)["y"], rtol=RTOL)
    np.testing.assert_array_equal(function(X)["n"], in_jax(X)["n"])
    np.testing.assert_allclose(
        jax.jit(jax.grad(outer(function)))(X), jax.grad(outer(in_jax))(X), rtol=RTOL
    )


def test_order_two_there_and_back_three_deep_in_jax():
    def second(function):
        return jax.grad(lambda x: (jax.grad(outer(function))(x) ** 2).sum())

    function = in_jax
    for _ in range(3):
        function = bridge.call_tf(bridge.convert(function))
    for run in (second(function), jax.jit(second(function))):
        np.testing.assert_allclose(run(X), second(in_jax)(X), rtol=1e-4)


def test_order_two_there_and_back_three_deep_in_tensorflow():
    function = in_tensorflow
    for _ in range(3):
        function = bridge.convert(bridge.call_tf(function))

    def second(function, x):
        with tf.GradientTape() as above:
            above.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = tf.reduce_sum(function(x)["y"])
            first = tape.gradient(value, x)
        return first, above.gradient(first, x)

    x = tf.constant(X)
    expected = second(in_tensorflow, x)
    for run in (second, tf.function(second, autograph=False)):
        for found, wanted in zip(run(function, x), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_variables_there_and_back_are_gradients_of_the_parameters():
    """What a model of either side is trained by is the same after three ways there and back."""

    def model(params, x):
        return jnp.tanh(x @ params["w"]) + params["b"]

    params = {"w": np.full((3, 2), 0.3, np.float32), "b": np.ones(2, np.float32)}
    function = model
    for _ in range(3):
        function = bridge.call_tf(bridge.convert(function))
    found = jax.jit(jax.grad(lambda p: (function(p, X) ** 2).sum()))(params)
    expected = jax.grad(lambda p: (model(p, X) ** 2).sum())(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, expected)
    variables = jax.tree.map(tf.Variable, params)
    converted = bridge.convert(function)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(converted(variables, X) ** 2)
    pulled = tape.gradient(loss, variables)
    for name, wanted in expected.items():
        np.testing.assert_allclose(pulled[name], wanted, rtol=1e-4)


@pytest.mark.parametrize("compiled", [None, True])
def test_there_and_back_three_deep_in_tensorflow(compiled):
    function = in_tensorflow
    for _ in range(3):
        function = bridge.convert(bridge.call_tf(function))

    @tf.function(jit_compile=compiled, autograph=False)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = function(x)
        return results, tape.gradient(results["y"], x)

    results, gradient = run(tf.constant(X))
    np.testing.assert_allclose(results["y"], in_tensorflow(X)["y"], rtol=RTOL)
    expected = jax.grad(lambda x: in_jax(x)["y"].sum())(X)
    np.testing.assert_allclose(gradient, expected, rtol=RTOL)


def test_a_loaded_model_of_keras_goes_to_jax_and_back(tmp_path):
    model = tf.keras.Sequential(
        [tf.keras.layers.Conv2D(2, 2), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
    )
    images = np.random.default_rng(0).random((2, 4, 4, 1), np.float32)
    expected = model(images)
    exported = jax.export.export(jax.jit(bridge.call_tf(model, variables="constant")))(images)
    bridge.save(exported, tmp_path / "model")
    found = tf.saved_model.load(str(tmp_path / "model"))(images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_threads_trace_once_and_agree():
    traces = []
    start = threading.Barrier(4)

    def function(x):
        traces.append(threading.get_ident())
        return tf.sin(x) * x

    called = bridge.call_tf(function)

    def work(index):
        start.wait()
        return jax.jit(jax.vmap(called) if index % 2 else called)(X)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for result in found:
        np.testing.assert_allclose(result, in_jax(X)["y"], rtol=RTOL)
    assert len(traces) == 2  # for one row, and for all


def test_tapes_and_graphs_around_a_call_do_not_matter():
    variable = tf.Variable(2.0)
    called = bridge.call_tf(lambda x: tf.sin(x) * variable)
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        inside = called(x)
    np.testing.assert_allclose(inside, np.sin(X) * 2.0, rtol=RTOL)

    @tf.function(autograph=False)
    def graph():
        return jax.jit(jax.grad(lambda x: bridge.call_tf(tf.sin)(x).sum()))(X)

    np.testing.assert_allclose(graph(), np.cos(X), rtol=RTOL)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.transpose(x) @ x,
        lambda x: tf.einsum("ab,cb->ca", x, x),
        lambda x: tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True) + tf.eye(2)),
        lambda x: tf.cond(x[0, 0] > 0, lambda: x + 1.0, lambda: tf.reverse(x, [0])),
        lambda x: tf.image.resize(x[..., None], (4, 6)),
        lambda x: tf.nn.max_pool2d(x[None, ..., None], 2, 1, "SAME"),
    ],
    ids=["transpose", "einsum", "cholesky", "cond", "resize", "pooling"],
)
def test_what_xla_notes_of_layouts_is_no_reason_to_refuse(function):
    exported = jax.export.export(jax.jit(bridge.call_tf(function)), platforms=["cpu"])(X)
    lifted = bridge.to_jax(exported)
    np.testing.assert_allclose(lifted(X), function(tf.constant(X)), rtol=RTOL, atol=1e-6)
    gradient = jax.grad(lambda x: (lifted(x) ** 2).sum())(X)
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        total = tf.reduce_sum(function(x) ** 2)
    np.testing.assert_allclose(gradient, tape.gradient(total, x), rtol=1e-4, atol=1e-5)


def test_what_tensorflow_compiles_becomes_onnx():
    onnxruntime = pytest.importorskip("onnxruntime")
    exported = jax.export.export(jax.jit(bridge.call_tf(lambda x: tf.transpose(x) @ x)))(X)
    model = bridge.to_onnx(exported).SerializeToString()
    session = onnxruntime.InferenceSession(model)
    (found,) = session.run(None, {session.get_inputs()[0].name: X})
    np.testing.assert_allclose(found, X.T @ X, rtol=RTOL)
