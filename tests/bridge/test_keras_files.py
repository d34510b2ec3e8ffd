"""Models with an `ExportedLayer` in files, written and read on the backend of this process.

`test_keras_on_jax.py` runs this file once more on the JAX backend.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import zipfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.policy.source import ROOT

keras = pytest.importorskip("keras")
h5py = pytest.importorskip("h5py")

from bridge.keras import ExportedLayer  # noqa: E402
from bridge.layers.config_text import decode_artifact  # noqa: E402
from xla_call_module.errors import FormatError, InteropError  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
TABLE = np.random.default_rng(1).normal(size=(4, 8192)).astype("float32")


def with_constant(params, x):
    return jnp.tanh(x @ TABLE @ params["w"])


def train(params, state, rng, x):
    kept = jax.random.bernoulli(rng, 0.5, x.shape)
    return jnp.where(kept, x @ params, 0.0), {"mean": 0.5 * state["mean"] + 0.5 * x.mean(0)}


def infer(params, state, x):
    return x @ params - state["mean"]


def make_layers():
    w = np.random.default_rng(2).normal(size=(8192, 4)).astype("float32") / 100
    first = ExportedLayer(with_constant, params={"w": w}, trainable={"w": False}, name="first")
    second = ExportedLayer(
        infer, params=np.eye(4, dtype="float32"), state={"mean": np.zeros(4, "float32")},
        train=train, rng=3, name="second",
    )  # fmt: skip
    return first, second


@pytest.fixture(scope="module")
def model():
    inputs = keras.Input((4,))
    first, second = make_layers()
    outputs = keras.layers.Dense(1)(second(first(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def _copy(model):
    """A model of its own: saving as .h5 leaves another optimizer in what Keras saves next."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def test_the_constant_is_a_weight_and_not_in_the_config(model):
    layer = model.get_layer("first")
    assert [tuple(w.shape) for w in layer.non_trainable_weights] == [(8192, 4), (4, 8192)]
    assert len(json.dumps(layer.get_config()["artifact"])) < TABLE.nbytes // 4


@pytest.mark.parametrize("extension", ["keras", "h5"])
def test_a_file(model, tmp_path, extension):
    path = tmp_path / f"model.{extension}"
    _copy(model).save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    paths = [[w.path for w in m.trainable_weights] for m in (model, loaded)]
    assert paths[0] == paths[1]
    assert "second/mean" in [w.path for w in loaded.non_trainable_weights]
    loaded.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    loaded.fit(X, Y, verbose=0)
    found, before = (np.array(m.get_layer("second").params) for m in (loaded, model))
    assert np.abs(found - before).max() > 0, "it trains further"


def test_keys_go_on_where_they_were(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    found, expected = (np.array(m.get_layer("second")(X, training=True)) for m in (loaded, model))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_weights_alone(model, tmp_path):
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    clone = keras.models.clone_model(model)
    clone.load_weights(path)
    np.testing.assert_allclose(clone.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


def test_a_config_is_json(model):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model.get_layer("second"))))
    layer = keras.saving.deserialize_keras_object(config)
    layer.set_weights(model.get_layer("second").get_weights())
    np.testing.assert_allclose(
        np.array(layer(X)), np.array(model.get_layer("second")(X)), rtol=1e-5
    )


def test_the_same_config_twice(model):
    first, second = (model.get_layer("first").get_config()["artifact"] for _ in range(2))
    assert first == second


READ = """
import sys
blocked = sys.argv[1].split(",")

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocker())
import keras, numpy as np
import bridge.keras
x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
model = keras.models.load_model(sys.argv[4])
np.testing.assert_allclose(model.predict(x, verbose=0), y, rtol=1e-4, atol=1e-5)
model.fit(x, np.ones_like(y), verbose=0)
assert np.abs(model.predict(x, verbose=0) - y).max() > 0
model.save(sys.argv[5])
assert not set(blocked) & set(sys.modules)
"""


def _read_elsewhere(model, folder, backend, blocked):
    paths = [folder / name for name in ("x.npy", "y.npy", "model.keras", "again.keras")]
    np.save(paths[0], X)
    np.save(paths[1], model.predict(X, verbose=0))
    model.save(paths[2])
    done = subprocess.run(
        [sys.executable, "-c", READ, blocked, *map(str, paths)],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return paths[3]


def test_in_a_process_without_jax_and_the_code(model, tmp_path):
    again = _read_elsewhere(model, tmp_path, "tensorflow", "jax,jaxlib")
    loaded = keras.models.load_model(again)
    assert loaded.predict(X, verbose=0).shape == (8, 1)


def test_on_the_jax_backend_elsewhere(model, tmp_path):
    if keras.backend.backend() == "jax":
        pytest.skip("this is the JAX backend")
    _read_elsewhere(model, tmp_path, "jax", "tensorflow")


def _texts(layer):
    """Damaged artifacts, each with what is said of it."""
    text = layer.get_config()["artifact"]
    data = zlib.decompress(base64.b64decode(text))
    size = int.from_bytes(data[:8], "little")

    def with_header(**changes):
        header = {**json.loads(data[8 : 8 + size]), **changes}
        new = json.dumps(header).encode()
        return _pack(len(new).to_bytes(8, "little") + new + data[8 + size :])

    header = json.loads(data[8 : 8 + size])
    function = header["inference"]
    yield None, "is a NoneType; expected text"
    yield "§", "is damaged"
    yield text[: len(text) // 2 // 4 * 4], "is cut off"
    yield _pack(data[:-5]), "not those of its nodes"
    yield _pack(b""), "do not fit together"
    yield with_header(format=99), "has the format 99"
    yield with_header(weights=[]), "not the leaves of"
    yield with_header(weights=[["w", "float32", [3, 3], True]] * 2), "does not take the weights"
    yield with_header(params=["set", [], ""]), "a container of the kind 'set'"
    yield with_header(inference={**function, "counts": [1, 1, -1]}), "does not take the weights"
    yield with_header(inference={**function, "orders": 1}), "InteropError|nodes|leaves|VJP"
    yield with_header(inference={**function, "outputs": 7}), "not the leaves of"
    yield with_header(nodes=[1]), "not those of its nodes"


def _pack(data):
    return base64.b64encode(zlib.compress(data)).decode()


def test_damaged_artifacts(model):
    for text, message in _texts(model.get_layer("second")):
        with pytest.raises(InteropError, match=message):
            decode_artifact(text)


def test_flipped_bytes(model):
    text = model.get_layer("second").get_config()["artifact"]
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    choose, refused = random.Random(0), 0
    for _ in range(200):
        position = choose.randrange(len(data))
        damaged = bytes(data[:position]) + bytes([data[position] ^ 0x55]) + data[position + 1 :]
        try:
            decode_artifact(_pack(damaged))
        except InteropError:
            refused += 1
    assert refused > 150


def _rewrite(path, change):
    """A .keras file with another config.json."""
    target = path.with_name("damaged.keras")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            archive.writestr(name, change(data) if name == "config.json" else data)
    return target


def test_a_damaged_file(model, tmp_path):
    model.save(tmp_path / "model.keras")
    text = model.get_layer("first").get_config()["artifact"].encode()
    target = _rewrite(tmp_path / "model.keras", lambda data: data.replace(text, text[:-400]))
    with pytest.raises(FormatError, match="artifact in the config of an ExportedLayer is damaged"):
        keras.models.load_model(target)


def test_a_damaged_h5_file(model, tmp_path):
    path = tmp_path / "model.h5"
    _copy(model).save(path)
    text = model.get_layer("first").get_config()["artifact"]
    with h5py.File(path, "r+") as file:
        file.attrs["model_config"] = file.attrs["model_config"].replace(text, text[:-400])
    with pytest.raises(FormatError, match="artifact in the config of an ExportedLayer is damaged"):
        keras.models.load_model(path)


def test_another_value_of_a_constant(model, tmp_path):
    path = tmp_path / "model.h5"
    _copy(model).save(path)
    found = []

    def change(name, item):
        if isinstance(item, h5py.Dataset) and item.shape == (4, 8192):
            item[0, 0] += 1
            found.append(name)

    with h5py.File(path, "r+") as file:
        file["model_weights"].visititems(change)
    assert len(found) == 1
    loaded = keras.models.load_model(path, compile=False)
    with pytest.raises(FormatError, match="has another value than the one that was written"):
        loaded.get_layer("first")(X)


def test_weights_of_another_model(model, tmp_path):
    model.save_weights(tmp_path / "model.weights.h5")
    other = ExportedLayer(lambda params, x: x * params["gain"], params={"gain": np.float32(1)})
    outside = keras.Sequential([keras.Input((4,)), other])
    outside.save_weights(tmp_path / "other.weights.h5")
    with h5py.File(tmp_path / "other.weights.h5", "r+") as file:
        variables = next(iter(file["layers"].values()))["vars"]
        variables.move("gain", "else")
    # Keras collects what layers say, and raises an error of its own.
    with pytest.raises(ValueError, match="The file has no weight gain for the layer"):
        outside.load_weights(tmp_path / "other.weights.h5")


@pytest.mark.parametrize("extension", ["keras", "h5", "export"])
def test_keys_that_are_no_names_of_tensorflow(tmp_path, extension):
    """Those of Haiku have `~`; the paths in the pytree stay."""
    if extension == "export" and keras.backend.backend() != "tensorflow":
        pytest.skip("what Keras exports on JAX is JAX's converter's to write")
    one = np.ones(2, "float32")
    params = {"mlp/~/linear 0": {"w (x)": np.eye(3, 2, dtype="float32")}, "a:0": {"": one}}
    params |= {"a_0": one * 2, "_ä": one * 3, "": one * 4}

    def function(params, x):
        *shifts, w = (params["a:0"][""], params["a_0"], params["_ä"], params[""],
                      params["mlp/~/linear 0"]["w (x)"])  # fmt: skip
        return x @ w + sum(shifts)

    layer = ExportedLayer(function, params=params)
    model = keras.Sequential([keras.Input([3]), layer])
    x = np.arange(6, dtype="float32").reshape(2, 3)
    path = tmp_path / f"model.{extension}"
    if extension == "export":
        tf = pytest.importorskip("tensorflow")
        model.export(path, verbose=False)
        loaded = tf.saved_model.load(str(path))
        found = loaded.serve(x)
    else:
        model.save(path)
        loaded = keras.models.load_model(path)
        found = loaded(x)
        assert loaded.layers[-1].params.keys() == params.keys()
    np.testing.assert_allclose(found, function(params, x), rtol=1e-6)
    assert len({weight.path for weight in model.weights}) == 5
