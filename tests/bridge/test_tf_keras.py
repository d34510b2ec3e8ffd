"""`bridge.tf_keras.ExportedLayer`."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.bridge.absence import run_without_jax
from tests.bridge.models import exponential

keras = pytest.importorskip("tf_keras")
tf = pytest.importorskip("tensorflow")

from bridge.layers.config_text import decode_artifact  # noqa: E402
from bridge.tf_keras import ExportedLayer  # noqa: E402
from xla_call_module.errors import (  # noqa: E402
    ArgumentError,
    DtypeError,
    FormatError,
    StructureError,
)

# TF-Keras says so of .h5 files, and of what it keeps in SavedModels.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning"),
]

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
TABLE = np.random.default_rng(1).normal(size=(4, 8192)).astype("float32") / 100
W = np.random.default_rng(2).normal(size=(8192, 4)).astype("float32")


def network(params, x):
    return jnp.tanh(x @ TABLE @ params["dense"]["w"] + params["b"])


def make_network(**options):
    return ExportedLayer(network, params={"dense": {"w": W}, "b": np.zeros(4)}, **options)


def train(params, state, rng, x):
    kept = jax.random.bernoulli(rng, 0.5, x.shape)
    return jnp.where(kept, x @ params, 0.0), {"mean": 0.5 * state["mean"] + 0.5 * x.mean(0)}


def infer(params, state, x):
    return x @ params - state["mean"]


def make_normalizing():
    return ExportedLayer(
        infer, params=np.eye(4, dtype="float32"), state={"mean": np.zeros(4, "float32")},
        train=train, rng=3, name="normalizing",
    )  # fmt: skip


def make_model(**options):
    inputs = keras.Input((4,))
    hidden = make_normalizing()(
        make_network(name="net", trainable={"dense": False, "b": True})(inputs)
    )
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(), **options)
    return model


@pytest.fixture(scope="module")
def model():
    model = make_model()
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def test_weights(model):
    layer = model.get_layer("net")
    assert [w.name for w in layer.weights][:2] == ["net/b:0", "net/dense/w:0"]
    assert [w.name for w in layer.trainable_weights] == ["net/b:0"]
    assert np.abs(model.get_layer("normalizing").state["mean"]).max() > 0


def test_outputs():
    layer = make_network()
    expected = network({"dense": {"w": W}, "b": np.zeros(4, "float32")}, X)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-4, atol=1e-5)
    assert layer.compute_output_shape((None, 4)).as_list() == [None, 4]
    spec = layer.compute_output_signature(tf.TensorSpec([None, 4], tf.float32))
    assert (spec.shape.as_list(), spec.dtype) == ([None, 4], tf.float32)


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"run_eagerly": True}], ids=str)
def test_every_way_to_run(options):
    model = make_model(**options)
    first = model.fit(X, Y, batch_size=4, verbose=0).history["loss"][0]
    last = model.fit(X, Y, batch_size=4, epochs=3, verbose=0).history["loss"][-1]
    assert np.isfinite([first, last]).all()
    assert np.abs(model.get_layer("net").params["b"]).max() > 0


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_a_file(model, tmp_path, name):
    path = str(tmp_path / name)
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.get_layer("net")).__name__ == "ExportedLayer"
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    loaded.fit(X, Y, verbose=0)


def test_a_clone_begins_again(model):
    clone = keras.models.clone_model(model)
    np.testing.assert_array_equal(clone.get_layer("normalizing").params, np.eye(4))
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


READ = """
import sys
import numpy as np, tf_keras
import bridge.tf_keras
folder = sys.argv[1]
x, y = np.load(f"{folder}/x.npy"), np.load(f"{folder}/y.npy")
for name in ("model.keras", "model.h5", "saved_model"):
    model = tf_keras.models.load_model(f"{folder}/{name}")
    np.testing.assert_allclose(model.predict(x, verbose=0), y, rtol=1e-4, atol=1e-5)
    model.fit(x, np.ones_like(y), verbose=0)
    assert np.abs(model.predict(x, verbose=0) - y).max() > 0
    model.save(f"{folder}/again_{name}")
    again = tf_keras.models.load_model(f"{folder}/again_{name}")
    now = model.predict(x, verbose=0)
    np.testing.assert_allclose(again.predict(x, verbose=0), now, rtol=1e-4, atol=1e-5)
"""


def test_in_a_process_without_jax_and_jaxlib_and_the_code(model, tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", model.predict(X, verbose=0))
    for name in ("model.keras", "model.h5", "saved_model"):
        model.save(str(tmp_path / name))
    run_without_jax(READ, tmp_path)


def test_a_layer_is_for_the_oldest_tensorflow_that_is_asked_for():
    exported = jax.export.export(jax.jit(exponential))(jax.ShapeDtypeStruct((3,), "float32"))

    def since(**options):
        layer = ExportedLayer(exported, **options)
        return decode_artifact(layer.get_config()["artifact"]).inference.since

    assert since() == ((2, 18), (2, 18))
    assert max(since(tensorflow="2.16")) <= (2, 16)


def test_masks_are_handed_on():
    tokens = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(7, 4, mask_zero=True)(tokens)
    layer = ExportedLayer(lambda x: {"same": x * 2.0, "pooled": x.sum(1)})
    outputs = layer(embedded)
    pooled = keras.layers.GlobalAveragePooling1D()
    model = keras.Model(tokens, [pooled(outputs["same"]), pooled(embedded)])
    found, plain = model.predict(np.array([[1, 2, 0, 0, 0]], "int32"), verbose=0)
    np.testing.assert_allclose(found, 2 * plain, rtol=1e-5)


def test_a_function_gets_the_mask_that_is_passed():
    def masked(x, mask=None):
        return x if mask is None else x * mask[..., None]

    tokens = keras.Input((5,), dtype="int32")
    embedding = keras.layers.Embedding(7, 4, mask_zero=True)
    passed = ExportedLayer(masked)(embedding(tokens), mask=embedding.compute_mask(tokens))
    model = keras.Model(tokens, [passed, embedding(tokens)])
    found, plain = model.predict(np.array([[1, 2, 0, 0, 0]], "int32"), verbose=0)
    np.testing.assert_array_equal(found[:, :2], plain[:, :2])
    assert not found[:, 2:].any()
    with pytest.raises(StructureError, match=r"has a mask, and masked takes one.*To do: pass it"):
        ExportedLayer(masked)(embedding(tokens))


def test_dtypes_without_a_name_in_hdf5(tmp_path):
    layer = ExportedLayer(
        lambda p, x: x * p["narrow"].astype("float32") + p["half"].astype("float32"),
        params={"narrow": np.full(4, 1.5, "float8_e4m3fn"), "half": np.full(4, 2.5, "bfloat16")},
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), X * 1.5 + 2.5)


@pytest.mark.parametrize("seed", ["a", 1.5, {"a": 1, "b": "c"}])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ArgumentError, match="expected an integer as a seed, a PRNG key"):
        ExportedLayer(lambda key, x: x, rng=seed)


def test_training_is_known_where_a_function_is_traced():
    layer = ExportedLayer(lambda x, training: -x if training else x)
    with pytest.raises(ArgumentError, match=r"argument training of .* is not known"):
        tf.function(lambda training: layer(X, training=training))(tf.constant(True))


def test_mixed_precision():
    layer = ExportedLayer(lambda p, x: x * p, params=np.ones(4), dtype="mixed_bfloat16")
    assert layer(X).dtype == tf.bfloat16
    assert layer.params.dtype == tf.float32
    exported = jax.export.export(jax.jit(jnp.sin))(X)
    with pytest.raises(DtypeError, match="computes in bfloat16"):
        ExportedLayer(exported, dtype="mixed_bfloat16")


def test_a_damaged_config(model):
    config = model.get_layer("net").get_config()
    assert json.dumps(config["artifact"])
    with pytest.raises(FormatError, match="damaged"):
        ExportedLayer.from_config({**config, "artifact": config["artifact"][:-40]})
    with pytest.raises(StructureError, match="exported when the layer is first called"):
        make_network().get_config()


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_keys_that_are_no_names_of_tensorflow(tmp_path, name):
    params = {"mlp/~/linear 0": {"w (x)": X.T @ X}, "a:0": {"": np.ones(4, "float32")}}
    params |= {"a_0": np.ones(4, "float32"), "_ä": np.ones(4, "float32")}

    def function(params, x):
        shift = params["a:0"][""] + params["a_0"] + params["_ä"]
        return x @ params["mlp/~/linear 0"]["w (x)"] + shift

    layer = ExportedLayer(function, params=params)
    model = keras.Sequential([keras.Input([4]), layer])
    model.save(tmp_path / name, **({"save_format": "tf"} if name == "saved_model" else {}))
    loaded = keras.models.load_model(tmp_path / name)
    np.testing.assert_allclose(loaded(X), function(params, X), rtol=1e-5)
    assert loaded.layers[-1].params.keys() == params.keys()
    assert len({weight.name for weight in model.weights}) == 4
