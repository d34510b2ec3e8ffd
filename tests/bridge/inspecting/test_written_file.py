"""The results of the verbs that write say what `inspect` and other runtimes find in the file."""

from __future__ import annotations

import dataclasses
import os
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

import bridge
import bridge.serving
from bridge.cli.main import main
from bridge.inspecting.wording import size
from bridge.inspecting.written_file import WrittenFile

PARAMS = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}
LINE = "serving_default(x: float32[batch,3]) -> score: float32[batch,2], for cpu, cuda, tpu"


def _predict(params, x):
    return {"score": jnp.tanh(x @ params["w"] + params["b"])}


def _save(path, **options):
    return bridge.save(_predict, path, params=PARAMS, args="f32[batch,3]", **options)


def _check(written, report):
    """Check that what was returned is what is in the file."""
    assert (written.path, os.fspath(written)) == (report.path, report.path)
    assert written.bytes == report.bytes
    assert written.parameter_bytes == sum(parameter.bytes for parameter in report.parameters)
    fields = ("key", "inputs", "outputs", "platforms", "gradient_order")
    assert [[getattr(s, name) for name in fields] for s in written.signatures] == [
        [getattr(s, name) for name in fields] for s in report.signatures
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return _save(tmp_path_factory.mktemp("saved") / "model")


OPTIONS = {
    "default": {},
    "manifest": {"manifest": True},
    "shards": {"num_shards": 2},
    "second order": {"gradient_order": 2},
    "no gradient": {"gradient_order": 0},
    "older": {"tensorflow": "2.14"},
    "names": {"inputs": ["rows"], "outputs": ["y"]},
    "buckets": {"batch_buckets": (1, 4)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_save_returns(options, tmp_path, capsys):
    written = _save(tmp_path / "model", **options)
    _check(written, bridge.inspect(written))
    assert written.tensorflow == bridge.inspect(written).tensorflow
    assert capsys.readouterr() == ("", "")


def test_several_signatures_and_constants(tmp_path):
    table = np.arange(50_000, dtype=np.float32)
    functions = {"b": lambda p, x: p["w"].sum() * x, "a": lambda p, x: (p["b"] + x[0], table)}
    written = bridge.save(
        functions, tmp_path / "m", params=PARAMS, args="f32[3]", platforms=["cpu"]
    )
    _check(written, bridge.inspect(written))
    with pytest.raises(dataclasses.FrozenInstanceError):
        written.path = "elsewhere"


def test_what_retarget_returns(saved, tmp_path):
    written = bridge.retarget(saved, "2.14", to=tmp_path / "older", platforms=["cpu"])
    _check(written, bridge.inspect(written))
    assert [s.platforms for s in written.signatures] == [("cpu",)]


def test_what_publish_and_rollback_return(saved, tmp_path):
    base = tmp_path / "base"
    xla = {"operations": "xla"}
    copy = bridge.serving.publish(saved, base, warmup=(1, 4), batching=True, **xla)
    made = bridge.serving.publish(_predict, base, params=PARAMS, args="f32[batch,3]", **xla)
    back = bridge.serving.rollback(base)
    for written in (copy, made, back):
        _check(written, bridge.inspect(written))
        assert written.tensorflow == saved.tensorflow
    assert str(back).splitlines() == [
        f"version 3: {back.path}",
        "a copy of version 1",
        "differences from the version that was served before:",
        "  other files beside the model, such as warmup records",
        "2 warmup records",
        f"{size(back.bytes)}, 32 B of weights, readable from TensorFlow 2.14 on",
        LINE,
    ]


def test_a_file_of_tensorflow(tmp_path):
    """What is no call of a JAX function is described as far as the file says."""

    class Reader(tf.Module):
        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.string, "text"),
                tf.TensorSpec(None, tf.float32, "scale"),
            ]
        )
        def __call__(self, text, scale):
            return {"y": tf.strings.to_number(text), "z": scale}

    tf.saved_model.save(Reader(), tmp_path / "plain")
    written = bridge.serving.publish(tmp_path / "plain", tmp_path / "base")
    line = "serving_default(scale: float32[...], text: string[_]) -> y: float32[_], z: float32[...]"
    assert str(written).splitlines()[-1] == line
    assert (written.tensorflow, written.signatures[0].platforms) == ("", ())
    assert written.bytes == sum(f.stat().st_size for f in (tmp_path / "base/1").rglob("*.*"))


@pytest.mark.parametrize("apart", [False, True])
def test_what_save_onnx_returns(apart, tmp_path, capsys):
    params = {"w": np.ones((300, 2), np.float32), "b": np.zeros(2, np.float32)}
    path = tmp_path / "m.onnx"
    options = {"external_data": apart, "args": "f32[2,300], i32[]", "opset": 20}
    written = bridge.save_onnx(lambda p, x, n: _predict(p, x), path, params=params, **options)
    assert os.fspath(written) == str(path)
    assert written.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert (written.parameter_bytes, written.opset) == (4 * 602, 20)
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    (signature,) = written.signatures
    assert [t.name for t in signature.inputs] == [v.name for v in session.get_inputs()]
    assert [t.used for t in signature.inputs] == [True, False]
    assert [t.shape for t in signature.inputs] == [tuple(v.shape) for v in session.get_inputs()]
    assert [t.name for t in signature.outputs] == [v.name for v in session.get_outputs()]
    assert str(written).splitlines()[0] == f"{path}: {written.bytes:,} bytes, ONNX opset 20"
    assert capsys.readouterr() == ("", "")


def test_how_it_prints(saved):
    assert str(saved).splitlines() == [
        f"{saved.path}: {saved.bytes:,} bytes, readable from TensorFlow 2.14 on",
        LINE,
    ]
    assert repr(saved).startswith(f"<WrittenFile {saved.path}: serving_default, ")
    assert repr(saved).endswith(", 32 B of weights, readable from TensorFlow 2.14 on>")
    page = ElementTree.fromstring(saved._repr_html_())
    cells = ["".join(cell.itertext()) for cell in page.iter("td")]
    assert cells == [
        "serving_default", "x: float32[batch,3]", "score: float32[batch,2]", "cpu, cuda, tpu",
        "order 1",
    ]  # fmt: skip
    assert "readable from TensorFlow 2.14 on" in "".join(page.itertext())


def test_names_do_no_harm(saved):
    """A name of a file is no markup, and nothing that a terminal obeys."""
    bad = "<script>\x1b[2J"
    signature = dataclasses.replace(saved.signatures[0], key=bad)
    file = WrittenFile(path=bad, signatures=(signature,) * 30, bytes=0, parameter_bytes=0)
    for text in (str(file), repr(file), file._repr_html_()):
        assert "\x1b" not in text
    assert "<script>" not in file._repr_html_()
    assert str(file).splitlines()[-1] == "and 10 other signatures"


def test_what_the_commands_print(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, title in (
        (
            ["retarget", saved.path, "older", "--tensorflow", "2.14"],
            "older: 2 calls of 2 modules, ",
        ),
        (["publish", saved.path, "base", "--operations", "xla"], "version 1: "),
        (["onnx", saved.path, "m.onnx"], "m.onnx: "),
    ):
        assert main(arguments) == 0
        first, *_, last = capsys.readouterr().out.splitlines()
        assert first.startswith(title)
        assert last in (LINE, "_predict(x: float32[batch,3]) -> score: float32[batch,2]")


def test_a_client_calls_it_as_it_says(tmp_path):
    written = bridge.save(lambda x, y: (x, y), tmp_path / "m", args="f32[2], f32[2]")
    loaded = tf.saved_model.load(written)
    said = written.signatures[0].client_call
    assert said == "loaded.signatures['serving_default'](x=…, y=…)"
    found = eval(said.replace("…", "tf.ones(2)"), {"loaded": loaded, "tf": tf})
    assert found.keys() == {"output_0", "output_1"}
