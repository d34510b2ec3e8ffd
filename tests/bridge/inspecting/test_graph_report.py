"""`inspect` of files with other operations than calls of modules: mixed ones, and TensorFlow's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.cli.main import main
from bridge.inspecting.html import to_html
from xla_call_module.errors import FormatError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    module = tf.Module()
    module.kernel = tf.Variable(np.ones((3, 2), "f"), name="kernel")
    texts = tf.Module()  # with a variable of a dtype that JAX does not have
    texts.kernel = module.kernel
    texts.text = tf.Variable("text", name="text", trainable=False)
    double = bridge.convert(lambda x: jnp.sin(x) * 2)
    spec = tf.TensorSpec([None, 3], tf.float32, name="x")

    @tf.function(input_signature=[spec])
    def plain(x):
        branches = tf.cond(tf.size(x) > 3, lambda: tf.nn.relu(x), lambda: tf.nn.elu(x))
        return {"y": branches @ module.kernel + 1}

    @tf.function(input_signature=[tf.TensorSpec([4, 3], tf.float32, name="x")])
    def more(x):
        return {"y": double(x) @ module.kernel}

    @tf.function(input_signature=[tf.TensorSpec([4, 3], tf.float32, name="x")])
    def only(x):
        return {"y": double(x)}

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32, name="words")])
    def same(words):
        return {"same": words}

    signatures = {
        "plain": {"serving_default": plain},
        "same": {"same": same},
        "more": {"serving_default": more},
        "mixed": {"more": more, "only": only, "same": same},
        "nothing": {},
    }
    for name, chosen in signatures.items():
        saved = texts if name == "plain" else module
        tf.saved_model.save(saved, folder / name, signatures=chosen)
    return folder


def test_a_plain_graph(folders):
    report = bridge.inspect(folders / "plain")
    assert (report.signatures, report.tensorflow) == ((), "")
    assert report.writer == f"TensorFlow {tf.__version__}"
    (signature,) = report.graph.signatures
    assert [(t.name, t.dtype, t.shape) for t in signature.inputs] == [("x", "float32", ("_", 3))]
    assert [(t.name, t.dtype, t.shape) for t in signature.outputs] == [("y", "float32", ("_", 2))]
    # Those of the branches, too.
    assert {"MatMul", "AddV2", "Relu", "Elu"} <= signature.operations.keys()
    assert not {"StatefulPartitionedCall", "Identity", "RestoreV2"} & signature.operations.keys()
    assert report.graph.operations["RestoreV2"] == 1
    assert report.graph.calls == ()
    assert sum(report.graph.functions.values()) > 10
    found = {p.name: (p.dtype, p.shape, p.bytes, p.trainable) for p in report.parameters}
    assert found == {
        "kernel": ("float32", (3, 2), 24, True),
        "text": ("string", (), 0, False),
    }


def test_calls_among_other_operations(folders):
    report = bridge.inspect(folders / "more")
    (signature,) = report.graph.signatures
    assert signature.operations["XlaCallModule"] == 1
    assert signature.operations["MatMul"] == 1
    function, gradient = report.graph.calls
    assert (function.gradient_order, gradient.gradient_order) == (0, 1)
    assert function.module.operations["stablehlo.sine"] == 1
    assert gradient.module.operations["stablehlo.cosine"] == 1
    assert report.tensorflow == function.module.tensorflow != ""


def test_what_is_calls_alone_is_told_as_ever(folders):
    report = bridge.inspect(folders / "mixed")
    (signature,) = report.signatures
    assert (signature.key, signature.gradient_order) == ("only", 1)
    assert [s.key for s in report.graph.signatures] == ["more", "same"]
    assert report.others.keys() == {"more", "same"}
    assert [call.gradient_order for call in report.graph.calls].count(0) == 1
    # What calls no module does not hide what does.
    assert bridge.load(folders / "mixed").signatures.keys() == {"only"}


@pytest.mark.parametrize("name", ["same", "nothing"])
def test_what_has_nothing_to_compute(folders, name):
    report = bridge.inspect(folders / name)
    assert [s.key for s in report.graph.signatures] == ["same"] * (name == "same")
    assert [p.name for p in report.parameters] == ["kernel"]
    with pytest.raises(FormatError, match=r"calls no StableHLO module|no signatures and no"):
        bridge.load(folders / name)


def test_a_keras_model_with_a_layer(tmp_path):
    """In a process of its own, since Keras takes its backend from the environment."""
    code = """
import jax, jax.numpy as jnp, numpy as np, sys
import keras
import bridge
from bridge.keras import ExportedLayer
x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
layer = ExportedLayer(jax.export.export(jax.jit(jnp.tanh))(x))
model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(2)])
model.export(sys.argv[1], verbose=False)
"""
    path = str(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = bridge.inspect(path)
    assert [s.key for s in report.graph.signatures] == ["serve", "serving_default"]
    assert all(s.operations["MatMul"] == 1 for s in report.graph.signatures)
    assert report.graph.calls[0].module.operations["stablehlo.tanh"] >= 1
    assert [p.shape for p in report.parameters][:2] == [(3, 2), (2,)]


@pytest.mark.parametrize("name", ["plain", "mixed", "more", "same", "nothing"])
def test_it_is_shown(folders, name, tmp_path, capsys):
    path = folders / name
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Graph\noperations" in text
    for signature in bridge.inspect(path).graph.signatures:
        assert f"Signature {signature.key}, of other operations" in text
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"]["functions"]
    assert main(["inspect", str(path), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page == to_html(bridge.inspect(path))
    assert "<h2>Graph</h2>" in page


@pytest.mark.parametrize("name", ["session_graph", "bare_graph"])
def test_files_without_an_object_graph(foreign, name):
    report = bridge.inspect(foreign(name).folder)
    assert report.signatures or report.graph.signatures


def test_damage_is_told(folders, tmp_path):
    data = (folders / "plain" / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=r"saved_model\.pb"):
        bridge.inspect(tmp_path)


def test_a_file_of_this_package_has_no_graph_of_its_own(tmp_path):
    bridge.save(jnp.sin, tmp_path / "m", args="f32[3]")
    assert bridge.inspect(tmp_path / "m").graph is None
