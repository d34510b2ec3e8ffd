"""Every public verb in every mode, once: the core of `make quick`.

One function with parameters goes through all of them. What each verb does in detail is tested in
the file of its name; here it is shown within minutes that none of them is broken.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import AbstractMesh

import bridge
import bridge.meshes
import bridge.serving
import bridge.testing
from bridge import jax2tf
from tests.verbs.test_option_coverage import TESTED
from xla_call_module.errors import ShardingError

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "b": np.ones(2, np.float32)}
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)


def predict(params, x):
    return {"score": jnp.tanh(x @ params["w"] + params["b"])}


SCORE = np.tanh(X @ PARAMS["w"] + PARAMS["b"])
GRADIENT = np.asarray(jax.grad(lambda x: predict(PARAMS, x)["score"].sum())(X))
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def exported():
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), PARAMS)
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), jnp.float32)
    platforms = ["cpu", "cuda", "tpu"]
    return jax.export.export(jax.jit(predict), platforms=platforms)(params, x)


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    """The function as a SavedModel, with gradients of two orders."""
    path = tmp_path_factory.mktemp("quick") / "model"
    bridge.save(exported, path, params=PARAMS, gradient_order=2)
    return path


def gradient_in_tensorflow(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(function(x)["score"])
    return tape.gradient(total, x)


# How TensorFlow runs a function.
EAGER = {"eager": lambda f: f}
GRAPH = {"graph": tf.function, "compiled": partial(tf.function, jit_compile=True)}
MODES = {**EAGER, **GRAPH}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("residuals", [False, True])
def test_convert(exported, mode, residuals):
    converted = bridge.convert(exported, residuals=residuals)
    f = MODES[mode](lambda x: converted(PARAMS, x))
    close(f(tf.constant(X))["score"], SCORE)
    gradient = MODES[mode](partial(gradient_in_tensorflow, lambda x: converted(PARAMS, x)))
    close(gradient(tf.constant(X)), GRADIENT)


@pytest.mark.parametrize("mode", MODES)
def test_save_to_tensorflow(saved, mode):
    model = tf.saved_model.load(saved)
    close(MODES[mode](lambda x: model(x))(tf.constant(X))["score"], SCORE)
    close(model.signatures["serving_default"](x=tf.constant(X))["score"], SCORE)
    close(MODES[mode](partial(gradient_in_tensorflow, model))(tf.constant(X)), GRADIENT)


def test_save_of_functions_and_again_in_tensorflow(tmp_path):
    bridge.save(predict, tmp_path / "model", params=PARAMS, args="f32[b,3]", residuals=True)
    model = tf.saved_model.load(tmp_path / "model")
    model.params["b"].assign_add([1.0, 1.0])
    tf.saved_model.save(model, str(tmp_path / "again"))
    again = bridge.load(tmp_path / "again").default
    close(again(x=X)["score"], np.tanh(X @ PARAMS["w"] + PARAMS["b"] + 1))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_load(saved, transform):
    model = bridge.load(saved)
    close(transform(model)(X)["score"], SCORE)
    close(transform(jax.grad(lambda x: model(x)["score"].sum()))(X), GRADIENT)
    close(transform(jax.vmap(model))(X[None])["score"][0], SCORE)


def test_to_jax(exported, saved):
    for source in (exported, saved):
        lifted = bridge.to_jax(source)
        close(jax.jit(lifted)(PARAMS, X)["score"], SCORE)
        close(jax.grad(lambda x, f=lifted: f(PARAMS, x)["score"].sum())(X), GRADIENT)
        close(jax.vmap(lifted, (None, 0))(PARAMS, X[None])["score"], SCORE[None])


def test_exported_from_stage():
    stage = jax.jit(predict).trace(PARAMS, X)
    close(bridge.exported_from_stage(stage).call(PARAMS, X)["score"], SCORE)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("options", [{}, {"compiled": False}], ids=["compiled", "callback"])
def test_call_tf(transform, options):
    f = bridge.call_tf(lambda x: tf.tanh(x) * 2.0, **options)
    close(transform(f)(X), 2 * np.tanh(X))
    if not options:
        close(transform(jax.grad(lambda x: f(x).sum()))(X), 2 / np.cosh(X) ** 2)


def test_call_tf_in_an_export(tmp_path):
    f = bridge.call_tf(lambda x: tf.tanh(x) * 2.0, graph=True, shapes="b, 3")
    bridge.save(f, tmp_path / "model", args="f32[b,3]")
    close(next(iter(tf.saved_model.load(tmp_path / "model")(X[:2]))), 2 * np.tanh(X[0]))


def test_jax2tf():
    f = jax2tf.convert(partial(predict, PARAMS), polymorphic_shapes=["b, _"])
    close(tf.function(f, autograph=False)(tf.constant(X))["score"], SCORE)
    close(jax.jit(jax2tf.call_tf(tf.tanh))(X), np.tanh(X))
    assert jax2tf.dtype_of_val(np.float32(1)) == tf.float32
    assert jax2tf.eval_polymorphic_shape(jnp.sin, polymorphic_shapes=["b"])(X[:, 0]) is not None
    split = tf.function(lambda x: jax2tf.split_to_logical_devices(x, [1, 1]))
    close(split(tf.constant(X)), X)


def test_inspect_and_diff(saved, tmp_path):
    report = bridge.inspect(saved)
    assert [signature.key for signature in report.signatures] == ["serving_default"]
    assert len(report.signatures[0].orders) == 3
    assert command("inspect", saved, "--html", tmp_path / "page.html").returncode == 0
    assert command("diff", saved, saved).returncode == 0
    shown = json.loads(command("inspect", saved, "--json").stdout)
    assert shown["signatures"]


def test_verify(saved):
    assert bridge.verify(saved).passed


def test_retarget(exported, saved, tmp_path):
    old = bridge.retarget(exported, tensorflow="2.14")
    close(old.call(PARAMS, X)["score"], SCORE)
    bridge.retarget(saved, "2.14", to=tmp_path / "old")
    close(tf.saved_model.load(tmp_path / "old")(tf.constant(X))["score"], SCORE)


def test_update(saved, tmp_path):
    bridge.update(saved, {"b": PARAMS["b"] + 1}, to=tmp_path / "new")
    score = np.tanh(X @ PARAMS["w"] + PARAMS["b"] + 1)
    close(bridge.load(tmp_path / "new")(X)["score"], score)
    close(tf.saved_model.load(tmp_path / "new")(tf.constant(X))["score"], score)


def test_onnx(exported, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = lambda model: onnxruntime.InferenceSession(model).run(None, {"x": X})[0]  # noqa: E731
    close(run(bridge.to_onnx(exported, params=PARAMS).SerializeToString()), SCORE)
    bridge.save_onnx(exported, tmp_path / "model.onnx", params=PARAMS)
    close(run(str(tmp_path / "model.onnx")), SCORE)


def test_litert(tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    pytest.importorskip("ai_edge_litert")
    options = {"params": PARAMS, "args": "f32[4,3]"}
    bridge.save_litert(predict, tmp_path / "model.tflite", **options)
    assert (tmp_path / "model.tflite").read_bytes() == bridge.to_litert(predict, **options)
    loaded = interpreter.Interpreter(str(tmp_path / "model.tflite"))
    close(loaded.get_signature_runner()(x=X)["score"], SCORE)


@pytest.mark.parametrize("layers", ["keras", "tf_keras"])
def test_keras_layers(layers, tmp_path):
    framework = pytest.importorskip(layers)
    layer = getattr(bridge, layers).ExportedLayer(predict, params=PARAMS)
    close(layer(X)["score"], SCORE)
    x = framework.Input([3])
    model = framework.Model(x, layer(x))
    model.save(tmp_path / "model.keras")
    close(framework.models.load_model(tmp_path / "model.keras")(X)["score"], SCORE)


def test_serving(exported, saved, tmp_path):
    base = tmp_path / "base"
    published = bridge.serving.publish(exported, base, params=PARAMS, warmup=(1, 4), batching=True)
    assert published.version == 1
    bridge.serving.publish(saved, base)
    assert bridge.serving.rollback(base).version == 3
    assert bridge.serving.add_warmup(saved, (2,)) == 1
    files = bridge.serving.write_configs(
        tmp_path / "etc", [bridge.serving.ModelConfig("model", str(base))]
    )
    assert Path(files.models).exists()
    assert Path(files.monitoring).exists()
    model = tmp_path / "composed"
    numbers = {"text": tf.TensorSpec([None, 3], tf.string)}
    read = lambda text: {"x": tf.strings.to_number(text)}  # noqa: E731
    bridge.serving.compose(saved, model, preprocess=read, request=numbers)
    composed = tf.saved_model.load(model).signatures["serving_default"]
    close(composed(text=tf.strings.as_string(X))["score"], SCORE)


def test_beam(saved):
    pytest.importorskip("apache_beam")
    from bridge.beam import ModelHandler

    handler = ModelHandler(str(saved))
    results = handler.run_inference(list(X), handler.load_model())
    close(np.stack([result.inference["score"] for result in results]), SCORE)


def test_meshes():
    mesh = AbstractMesh((2,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding)
    spread = jax.export.export(jax.jit(jnp.tanh, in_shardings=sharding))(x)
    with pytest.raises(ShardingError, match="2 devices"):
        bridge.meshes.mesh_of(spread)
    assert bridge.meshes.shards_of(spread)
    assert "data" in bridge.meshes.to_text(spread)
    assert bridge.meshes.to_svg(spread).startswith("<svg")


def test_testing():
    bridge.testing.assert_gradients_match(lambda x: jnp.tanh(x) * 2, X[0], order=1)


def test_commands(saved, tmp_path):
    (tmp_path / "network.py").write_text("import jax.numpy as jnp\nf = jnp.tanh\n")
    out = tmp_path / "model"
    arguments = ["export", "network:f", "--args", "f32[b,3]", "--out", out]
    assert command(*arguments, cwd=tmp_path).returncode == 0
    assert command("onnx", saved, tmp_path / "model.onnx").returncode == 0


def command(*arguments, cwd=None):
    """Run `jax-tf-bridge`."""
    call = [sys.executable, "-m", "bridge", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, cwd=cwd)


def test_no_verb_is_left_out():
    used = Path(__file__).read_text()
    assert [name for name in TESTED if f"{name.rpartition('.')[2]}(" not in used] == []
