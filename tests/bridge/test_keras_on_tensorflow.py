"""Keras on its TensorFlow backend alone: ways to run, strategies, SavedModels."""

from __future__ import annotations

import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.policy.source import ROOT

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from bridge.keras import ExportedLayer  # noqa: E402
from bridge.layers.artifact import LayerFunction  # noqa: E402
from tests.bridge.test_keras_layer import make_normalizing, make_params, network  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    ),
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="Keras runs on another backend"
    ),
]

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def exported():
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), "float32")
    return jax.export.export(jax.jit(network))(make_params(), x)


def _trained(exported, **options):
    """Losses and weights after some steps in one of the ways to run."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((4,)),
        ExportedLayer(exported, params=make_params()),
        # What is normalized next does not depend on a bias: its gradient is rounding, and a step of
        # Adam as large as any other.
        keras.layers.Dense(4, kernel_initializer="ones", use_bias=False),
        make_normalizing(rng=7),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError(), **options)
    history = model.fit(X, X[:, :3], batch_size=4, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.fixture(scope="module")
def in_a_graph(exported):
    return _trained(exported, jit_compile=False)


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"run_eagerly": True}], ids=str)
def test_every_way_to_run_computes_the_same(exported, in_a_graph, options):
    losses, weights = _trained(exported, **options)
    np.testing.assert_allclose(losses, in_a_graph[0], rtol=1e-4)
    for found, expected in zip(weights, in_a_graph[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_gradients_are_those_of_jax(exported):
    layer = ExportedLayer(exported, params=make_params())
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x) ** 2)
    found = tape.gradient(loss, [x, layer.params["dense"]["kernel"].value])
    expected = jax.grad(lambda p, x: jnp.sum(network(p, x) ** 2), (1, 0))(make_params(), X)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1]["dense"]["kernel"], rtol=1e-4, atol=1e-5)


def test_the_order_of_gradients():
    def second(layer):
        x = tf.constant([0.5])
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = layer(x)
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    twice = ExportedLayer(jnp.sin, gradient_order=2)
    np.testing.assert_allclose(second(twice), -np.sin([0.5]), rtol=1e-5)
    once = ExportedLayer(jnp.sin)
    with pytest.raises(ValueError, match=r"up to order 1\. To do: make it with gradient_o"):
        second(once)


def test_what_has_no_gradient_is_not_trained_silently():
    layer = ExportedLayer(network, params=make_params(), gradient_order=0)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mean_squared_error")
    with pytest.raises(LookupError, match="To do: make the layer with gradient_order=1"):
        model.fit(X, X[:, :3], verbose=0)
    layer.trainable = False
    behind = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    behind.compile("sgd", "mean_squared_error")
    before = layer.get_weights()
    behind.fit(X, X[:, :1], verbose=0)
    for found, expected in zip(layer.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_exported_saved_model_needs_nothing_of_ours(tmp_path, preloaded_python):
    model = keras.Sequential([keras.Input((4,)), make_normalizing(rng=7)])
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    model.fit(X, X[:, :3], verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    code = (
        "import sys, numpy as np, tensorflow as tf\n"
        "loaded = tf.saved_model.load(sys.argv[1])\n"
        "x = np.load(sys.argv[2])\n"
        "np.testing.assert_allclose(loaded.serve(x), np.load(sys.argv[3]), rtol=1e-4, atol=1e-6)\n"
        "assert 'bridge' not in sys.modules\n"
    )
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", model.predict(X, verbose=0))
    paths = [str(tmp_path / name) for name in ("exported", "x.npy", "y.npy")]
    done = subprocess.run(
        [preloaded_python, "-c", code, *paths],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shapes = {v.shape.as_list()[0] for v in tf.saved_model.load(paths[0]).variables if v.shape.rank}
    assert {3, 4} <= shapes, "the parameters and the state are variables"


MIRRORED = """
import jax, jax.numpy as jnp, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from tests.bridge.test_keras_layer import X, NORMALIZING, make_normalizing, make_params, network
from bridge.keras import ExportedLayer

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    first = ExportedLayer(network, params=make_params())
    second = make_normalizing(rng=7)
    head = keras.layers.Dense(4, kernel_initializer="ones", trainable=False)
    model = keras.Sequential([keras.Input((4,)), first, head, second])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    before = head(first(X)).numpy()
    model.fit(X, X[:, :3], batch_size=8, verbose=0, shuffle=False)
assert int(np.asarray(second.state["steps"])) == 1
# The mean of the batch is the mean of the means of its halves.
mean = np.asarray(second.state["mean"])
np.testing.assert_allclose(mean, 0.5 * before.mean(0)[:3], rtol=1e-4)
assert np.abs(np.asarray(first.params["dense"]["bias"])).max() > 0
expected = head(first(X)).numpy() @ np.asarray(second.params["w"]) - mean
np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-4, atol=1e-5)

with strategy.scope():
    layer = ExportedLayer(network, params=make_params())
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    model.fit(X, np.zeros((8, 3), "float32"), batch_size=8, verbose=0)
gradients = jax.grad(lambda p: jnp.mean(network(p, X) ** 2))(make_params())
stepped = jax.tree.map(lambda p, g: p - 0.1 * g, make_params(), gradients)
for found, wanted in zip(model.get_weights(), jax.tree.leaves(stepped), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
"""


def test_in_a_mirrored_strategy(preloaded_python):
    done = subprocess.run(
        [preloaded_python, "-c", MIRRORED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_batch_of_unknown_rank_is_passed_on(exported):
    layer = ExportedLayer(exported, params=make_params())
    function = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.float32)])
    np.testing.assert_allclose(function(X), network(make_params(), X), rtol=1e-4)


def test_nothing_is_traced_again_for_another_batch():
    calls = []

    def function(x):
        calls.append(x.shape)
        return x * 2.0

    layer = ExportedLayer(function)
    for size in (8, 3, 5):
        layer(X[:size])
    assert len(calls) <= 2, "once for the export, and once for its derivative"
    assert isinstance(layer._computation.artifact.inference, LayerFunction)


def test_a_checkpoint_has_all_weights(tmp_path):
    def count(params, state, x):
        outputs = x @ params["kernel"] + params["large"].sum()
        return outputs, {"calls": state["calls"] + 1}

    params = {"kernel": np.ones((4, 1), "float32"), "large": np.ones(3, "float32")}
    layer = ExportedLayer(
        count,
        params=params,
        trainable={"kernel": True, "large": False},
        state={"calls": np.int32(0)},
    )
    layer(np.ones((2, 4), "float32"), training=True)
    checkpoint = tf.train.Checkpoint(layer=layer)
    path = checkpoint.save(tmp_path / "checkpoint")
    saved = [np.array(weight) for weight in layer.weights]
    assert len(saved) == 3
    for weight in layer.weights:
        weight.assign(np.zeros(weight.shape, weight.dtype))
    checkpoint.restore(path)
    for weight, value in zip(layer.weights, saved, strict=True):
        np.testing.assert_array_equal(np.array(weight), value)
