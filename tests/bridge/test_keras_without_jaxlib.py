"""Layers of Keras 3 in processes that have TensorFlow, and neither JAX nor jaxlib."""

from __future__ import annotations

import base64
import json
import zipfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.bridge.absence import run_without_jax
from tests.bridge.models import exponential
from xla_call_module.errors import InteropError, StructureError, VersionError

keras = pytest.importorskip("keras")

from bridge.keras import ExportedLayer  # noqa: E402
from bridge.layers.config_text import decode_artifact, encode_artifact  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
TABLE = np.random.default_rng(1).normal(size=(4, 8192)).astype("float32") / 100
COVARIANCE = np.eye(4, dtype="float32") + 0.1


def curved(params, x):
    hidden = jax.scipy.special.erf(x @ TABLE @ params["w"]) * jnp.linalg.norm(x)
    return hidden + x @ jnp.linalg.cholesky(params["covariance"])


def train(params, state, rng, x):
    kept = jax.random.bernoulli(rng, 0.5, x.shape)
    return jnp.where(kept, x @ params, 0.0), {"mean": 0.5 * state["mean"] + 0.5 * x.mean(0)}


def infer(params, state, x):
    return x @ params - state["mean"]


def export_curved(params):
    (b,) = jax.export.symbolic_shape("b", constraints=["mod(b, 2) == 0"])
    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    return jax.export.export(jax.jit(curved))(specs, jax.ShapeDtypeStruct((b, 4), "float32"))


@pytest.fixture(scope="module")
def model():
    w = np.random.default_rng(2).normal(size=(8192, 4)).astype("float32") / 10
    params = {"w": w, "covariance": COVARIANCE}
    first = ExportedLayer(export_curved(params), params=params, gradient_order=2, name="curved")
    second = ExportedLayer(
        infer, params=np.eye(4, dtype="float32"), state={"mean": np.zeros(4, "float32")},
        train=train, rng=3, name="normalizing",
    )  # fmt: skip
    model = keras.Sequential([keras.Input((4,)), first, second, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    return model


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    """A folder with the model in every form, and what JAX computes of its first layer."""
    folder = tmp_path_factory.mktemp("files")
    params = jax.tree.map(np.array, model.get_layer("curved").params)

    def second(x):
        return jax.grad(lambda x: jnp.sum(jax.grad(lambda x: curved(params, x).sum())(x) ** 2))(x)

    np.savez(folder / "expected", x=X, y=model.predict(X, verbose=0), second=second(X))
    model.save(folder / "model.keras")
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.save(folder / "model.h5")
    model.export(folder / "exported", verbose=False)
    return folder


READ = """
import sys
import keras, numpy as np, tensorflow as tf
import bridge.keras

folder = sys.argv[1]
expected = np.load(f"{folder}/expected.npz")
x, y = expected["x"], expected["y"]

def is_close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)

def check_exported(path, y):
    loaded = tf.saved_model.load(path)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.serve(tf.constant(x)) ** 2)
    is_close(loaded.serve(tf.constant(x)), y)
    gradients = tape.gradient(loss, loaded.trainable_variables)
    assert gradients and all(np.abs(gradient).max() > 0 for gradient in gradients)

for name in ("model.keras", "model.h5"):
    model = keras.models.load_model(f"{folder}/{name}", compile=False)
    is_close(model.predict(x, verbose=0), y)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    model.fit(x, np.ones_like(y), verbose=0)
    now = model.predict(x, verbose=0)
    assert np.abs(now - y).max() > 0
    assert np.abs(model.get_layer("normalizing").state["mean"]).max() > 0
    model.save(f"{folder}/again_{name}")
    again = keras.models.load_model(f"{folder}/again_{name}", compile=False)
    is_close(again.predict(x, verbose=0), now)

check_exported(f"{folder}/exported", y)
model.export(f"{folder}/again_exported", verbose=False)
check_exported(f"{folder}/again_exported", now)

model = keras.models.load_model(f"{folder}/model.keras")
layer, point = model.get_layer("curved"), tf.constant(x)
with tf.GradientTape() as outer:
    outer.watch(point)
    with tf.GradientTape() as inner:
        inner.watch(point)
        total = tf.reduce_sum(layer(point))
    square = tf.reduce_sum(inner.gradient(total, point) ** 2)
is_close(outer.gradient(square, point), expected["second"])
of_any_size = tf.function(layer, input_signature=[tf.TensorSpec([None, 4])])
for run in (layer, of_any_size, tf.function(layer)):
    try:
        run(tf.constant(x[:3]))
    except tf.errors.InvalidArgumentError as error:
        assert "constraint mod(b, 2) == 0" in str(error), error
    else:
        raise AssertionError("not refused")
"""


def test_files_are_loaded_called_trained_and_written_again(files):
    run_without_jax(READ, files, KERAS_BACKEND="tensorflow")
    # What was trained there goes on here.
    again = keras.models.load_model(files / "again_model.keras")
    assert again.predict(X, verbose=0).shape == (8, 1)


def test_a_function_of_a_layer_refuses_sizes_by_name(model):
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(
        StructureError, match=r"floordiv\(b, 2\).* By name: .*args\[1\] is x\. To do"
    ):
        tf.function(model.get_layer("curved"))(tf.constant(X[:3]))


def _with_header(text, change):
    """The text of an artifact after a change of its header."""
    data = zlib.decompress(base64.b64decode(text))
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    new = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    packed = zlib.compress(len(new).to_bytes(8, "little") + new + data[8 + size :], 9)
    return base64.b64encode(packed).decode()


def _as_before(header):
    """Leave out what older versions of this package did not write."""
    for function in filter(None, (header["inference"], header["training"])):
        del function["since"], function["shape_check"]


def _for_another_release(header):
    for function in filter(None, (header["inference"], header["training"])):
        function["since"] = [[2, 99]] * len(function["since"])


def _rewrite(path, target, change):
    """Write a .keras file with other artifacts."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            data = source.read(name)
            if name == "config.json":
                config = json.loads(data)
                for layer in config["config"]["layers"]:
                    if "artifact" in layer["config"]:
                        text = layer["config"]["artifact"]
                        layer["config"]["artifact"] = _with_header(text, change)
                data = json.dumps(config).encode()
            archive.writestr(name, data)
    return target


ASK = """
import sys
import keras, numpy as np
import bridge.keras
for path in sys.argv[1:]:
    model = keras.models.load_model(path, compile=False)
    try:
        model.predict(np.ones([8, 4], "float32"), verbose=0)
    except ImportError as error:
        print(str(error).replace(chr(10), " "))
"""


def test_jaxlib_is_asked_for_where_a_module_is_translated(model, files):
    older = _rewrite(files / "model.keras", files / "older.keras", _as_before)
    other = _rewrite(files / "model.keras", files / "other.keras", _for_another_release)
    said = run_without_jax(ASK, older, other, KERAS_BACKEND="tensorflow")
    lines = [line for line in said.splitlines() if "jaxlib" in line]
    assert "does not say which releases run it as it stands" in lines[0]
    assert "To do: pip install jaxlib; or, where it is installed, save the model again." in lines[0]
    assert "is for TensorFlow 2.99 and newer, and TensorFlow 2." in lines[1]
    assert "make the layer with tensorflow='2." in lines[1]
    for path in (older, other):
        loaded = keras.models.load_model(path)
        expected = model.predict(X, verbose=0)
        np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, rtol=1e-5)


def test_an_older_artifact_is_completed_when_it_is_written_again(model):
    for name in ("curved", "normalizing"):
        text = model.get_layer(name).get_config()["artifact"]
        older = decode_artifact(_with_header(text, _as_before))
        assert (older.inference.since, older.inference.shape_check) == ((), None)
        assert encode_artifact(older) == text


def test_a_layer_is_for_the_oldest_tensorflow_that_is_asked_for():
    exported = jax.export.export(jax.jit(exponential))(jax.ShapeDtypeStruct((3,), "float32"))

    def since(**options):
        layer = ExportedLayer(exported, **options)
        return decode_artifact(layer.get_config()["artifact"]).inference.since

    assert since() == ((2, 18), (2, 18)), "its composite is kept"
    assert max(since(tensorflow="2.16")) <= (2, 16)
    found = np.array(ExportedLayer(exported, tensorflow="2.14")(X[0, :3]))
    np.testing.assert_allclose(found, np.exp(X[0, :3]), rtol=1e-5)
    algorithm = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    dot = jax.jit(lambda x: jax.lax.dot(x, x, precision=algorithm))
    exported = jax.export.export(dot)(jax.ShapeDtypeStruct((3,), "float32"))
    with pytest.raises(VersionError, match=r"cannot be expressed for TensorFlow 2\.18"):
        ExportedLayer(exported, tensorflow="2.18")


def _damaged(text):
    """Damaged records of what runs a function and what it asserts, with what is said of each."""
    data = zlib.decompress(base64.b64decode(text))
    check = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["inference"]["shape_check"]

    def with_function(**fields):
        return _with_header(text, lambda header: header["inference"].update(fields))

    def with_check(**fields):
        return with_function(shape_check={**check, **fields})

    step = check["steps"][-1]
    yield with_function(since=[[2, 18]]), "not said of each order"
    yield with_function(since=["2.18"] * 3), "do not fit together"
    yield with_function(since=[[2, 18, 1]] * 3), "do not fit together"
    yield with_check(steps=[]), "0 steps"
    yield with_check(steps=[*check["steps"], ["WriteFile", [0, 0], "int32", "bool"]]), "WriteFile"
    yield with_check(steps=[*check["steps"], ["Equal", [0], "int32", "bool"]]), "of 1 inputs"
    yield with_check(steps=[*check["steps"], ["Equal", [0, 99], "int32", "bool"]]), "not there"
    yield with_check(steps=[["size", 7, 0], step]), "not there"
    yield with_check(steps=[["size", 0, 0], ["else"]]), "has the step"
    yield with_check(steps=[["constant", 1 << 40, "int32"]]), "has the step"
    yield with_check(steps=[["constant", 1, "float32"]]), "of the dtype 'float32'"
    yield with_check(kept=[0]), "other arguments"
    yield with_check(node="AAAA"), "not a NodeDef"


NEW = """
import keras, numpy as np
import bridge.keras
for exported in (np.sin, "my_model"):
    try:
        bridge.keras.ExportedLayer(exported)
    except ImportError as error:
        print(error)
"""


def test_a_new_layer_needs_jax():
    said = run_without_jax(NEW, KERAS_BACKEND="tensorflow")
    assert said.count("Making an ExportedLayer needs JAX, which is not installed. To do: ") == 2


def test_damaged_records(model):
    for text, message in _damaged(model.get_layer("curved").get_config()["artifact"]):
        with pytest.raises(InteropError, match=message):
            decode_artifact(text)
