"""`publish(labels=)`: outputs of texts beside indices and scores, which need no TensorFlow."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from bridge.cli.main import main
from bridge.serving import publish
from savedmodel.model import Labels
from tests.policy.source import ROOT
from xla_call_module.errors import DtypeError, StructureError

PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}
X = np.array([[1, -1, 1], [-1, 0.5, 0], [-1, 2, 0]], np.float32)
ANIMALS = {"score": ["cat", "dog"], "best": ["Kätzchen", "dog"]}
_SESSION = """
import json, sys
import numpy as np
from bridge.core._tf import disable_xla
disable_xla()
from tests.tensorflow_modes import run_session
found = run_session(sys.argv[1], "serving_default", {"x": np.array(json.loads(sys.argv[2]), "f4")})
texts = {n: v.tolist() for n, v in found.items() if v.dtype == object}
print(json.dumps({n: [t.decode() for t in v] for n, v in texts.items()}))
"""


def predict(params, x):
    score = x @ params["w"]
    return {"score": score, "best": jnp.argmax(score, -1).astype("int8"), "z": score.sum(-1)}


def _publish(base, **options):
    options = {"params": PARAMS, "args": "f32[b,3]", "labels": ANIMALS, **options}
    return publish(predict, base, **options).path


def _expected(x, params=PARAMS):
    best = np.argmax(x @ params["w"], -1)
    return {f"{name}_label": [texts[i] for i in best] for name, texts in ANIMALS.items()}


def _found(folder, x=X):
    found = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant(x))
    assert set(found) == {"best", "best_label", "score", "score_label", "z"}
    np.testing.assert_allclose(found["score"], x @ PARAMS["w"], rtol=1e-6)
    np.testing.assert_allclose(found["z"], (x @ PARAMS["w"]).sum(-1), rtol=1e-5)
    return {name: _texts(value) for name, value in found.items() if value.dtype == tf.string}


def _texts(value):
    return [text.decode() for text in value.numpy().tolist()]


@pytest.fixture(scope="module", params=["tensorflow", "xla"])
def folder(request, tmp_path_factory):
    base = tmp_path_factory.mktemp("labels")
    return _publish(base, operations=request.param, warmup=(1, 2))


def test_tensorflow_returns_the_texts(folder):
    assert _expected(X)["best_label"] == ["dog", "Kätzchen", "dog"]
    assert _found(folder) == _expected(X)
    assert _found(folder, X[1:2]) == _expected(X[1:2])


def test_a_server_without_xla_returns_the_texts(tmp_path):
    folder = _publish(tmp_path)
    command = [sys.executable, "-c", _SESSION, folder, json.dumps(X.tolist())]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == _expected(X)


def test_jax_has_the_other_outputs(folder):
    loaded = bridge.load(folder)
    assert set(loaded(X)) == {"best", "score", "z"}
    np.testing.assert_allclose(loaded(X)["score"], X @ PARAMS["w"], rtol=1e-6)
    assert bridge.verify(folder).passed


def test_inspect_shows_them(folder):
    outputs = {each.name: each for each in bridge.inspect(folder).signatures[0].outputs}
    assert outputs["score_label"].dtype == outputs["best_label"].dtype == "string"
    assert outputs["score_label"].shape == outputs["best_label"].shape == ("b",)


def test_what_is_read_is_what_is_written(folder, tmp_path):
    read = savedmodel.read(folder)
    expected = {f"{name}_label": Labels(name, tuple(t)) for name, t in ANIMALS.items()}
    assert read.default.labels == expected
    savedmodel.write(read, tmp_path / "again")
    assert savedmodel.read(tmp_path / "again").default.labels == expected
    assert _found(str(tmp_path / "again")) == _expected(X)


def test_they_stay_when_the_file_changes(folder, tmp_path):
    bridge.retarget(folder, to=tmp_path / "older", gradient_order=0)
    assert _found(str(tmp_path / "older")) == _expected(X)
    bridge.retarget(folder, to=tmp_path / "plain", operations="tensorflow")
    assert _found(str(tmp_path / "plain")) == _expected(X)
    new = {"w": -PARAMS["w"]}
    bridge.update(folder, new, to=tmp_path / "updated")
    found = tf.saved_model.load(str(tmp_path / "updated")).signatures["serving_default"](
        x=tf.constant(X)
    )
    assert _texts(found["score_label"]) == _expected(X, new)["score_label"]


def test_new_weights_keep_them_and_the_same_ones_are_unchanged(tmp_path):
    _publish(tmp_path)
    arguments = {"params": PARAMS, "args": "f32[b,3]"}
    assert publish(predict, tmp_path, labels=ANIMALS, **arguments).unchanged
    second = publish(None, tmp_path, weights={"w": -PARAMS["w"]})
    found = tf.saved_model.load(second.path).signatures["serving_default"](x=tf.constant(X))
    assert _texts(found["score_label"]) == _expected(X, {"w": -PARAMS["w"]})["score_label"]
    third = publish(predict, tmp_path, labels={**ANIMALS, "score": ["a", "b"]}, **arguments)
    assert not third.unchanged
    with pytest.raises(StructureError, match=r"labels= has no effect"):
        publish(None, tmp_path, weights=PARAMS, labels=ANIMALS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "uint8", "uint32"])
def test_of_each_dtype(dtype, tmp_path):
    is_float = jnp.issubdtype(dtype, jnp.floating)
    folder = publish(
        lambda x: x, tmp_path, args=f"{dtype}[b,2]", labels={"output_0": ["no", "yes"]}
    ).path
    x = tf.constant([[0, 1], [1, 0]], dtype)
    found = tf.saved_model.load(folder).signatures["serving_default"](x=x)["output_0_label"]
    expected = [b"yes", b"no"] if is_float else [[b"no", b"yes"], [b"yes", b"no"]]
    assert found.numpy().tolist() == expected


def test_an_index_without_a_label_is_refused(tmp_path):
    folder = publish(lambda x: x, tmp_path, args="int32[b]", labels={"output_0": ["no"]}).path
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 1\)"):
        signature(x=tf.constant([1]))


def test_padded_batches(tmp_path):
    folder = _publish(tmp_path, batch_buckets=(2, 4), operations="xla")
    assert _found(folder, X[:1]) == _expected(X[:1])
    assert savedmodel.read(folder).default.labels.keys() == {"best_label", "score_label"}


def test_a_file_that_tensorflow_wrote(tmp_path):
    module = tf.Module()
    spec = tf.TensorSpec([None, 2], tf.float32, name="x")
    module.f = tf.function(lambda x: {"a": 2 * x, "zz": tf.reduce_sum(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "model"), {"serving_default": module.f})
    folder = publish(tmp_path / "model", tmp_path / "base", labels={"a": ["no", "yes"]}).path
    found = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant([[0, 1.0]]))
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "a": [[0, 2]], "a_label": [b"yes"], "zz": 1,
    }  # fmt: skip


def test_a_composed_file(tmp_path):
    folder = _publish(tmp_path, postprocess=lambda score, best, z: {"score": score, "best": best})
    found = tf.saved_model.load(folder).signatures["serving_default"](x=tf.constant(X))
    assert _texts(found["score_label"]) == _expected(X)["score_label"]
    assert bridge.inspect(folder).signatures


def test_from_the_command_line(tmp_path, capsys):
    bridge.save(predict, tmp_path / "model", params=PARAMS, args="f32[b,3]")
    for name, texts in ANIMALS.items():
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    labels = [f"--labels={name}={tmp_path / name}" for name in ANIMALS]
    before = (tmp_path / "model/saved_model.pb").read_bytes()
    assert main(["publish", str(tmp_path / "model"), str(tmp_path / "base"), *labels]) == 0
    assert "score_label: string[b]" in capsys.readouterr().out
    assert _found(str(tmp_path / "base/1")) == _expected(X)
    assert (tmp_path / "model/saved_model.pb").read_bytes() == before
    for wrong in ("score", "score=", f"score={tmp_path / 'missing'}"):
        with pytest.raises(SystemExit):
            main(["publish", str(tmp_path / "model"), str(tmp_path / "base"), "--labels", wrong])
        assert "argument --labels: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "error", "match"),
    [
        ({"score": ["cat"]}, StructureError, r"1 labels, and the output has 2 scores.*To do: "),
        ({"z": ["cat"]}, StructureError, r"1 labels, and the output has \? scores"),
        (
            {"scores": ["cat"]},
            StructureError,
            r"are for the output 'scores', and the outputs .*'z'",
        ),
        ({"score": "ab"}, StructureError, r"expected for names of outputs a list of texts"),
        ({"score": []}, StructureError, r"expected for names of outputs a list of texts"),
        ({"score": ["cat", 1]}, StructureError, r"expected for names of outputs a list of texts"),
        ({"score": ["cat", "\ud800"]}, StructureError, r"expected for names of outputs a list"),
        (["cat", "dog"], StructureError, r"expected for names of outputs a list of texts"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, error, match, tmp_path):
    with pytest.raises(error, match=match):
        _publish(tmp_path, labels=labels)
    assert not [name for name in tmp_path.iterdir() if re.fullmatch(r"\d+", name.name)]


def test_outputs_of_other_dtypes_and_taken_names_are_refused(tmp_path):
    labels = {"output_0": ["no", "yes"]}
    with pytest.raises(DtypeError, match=r"it is bool; expected integers.*To do: "):
        publish(lambda x: x > 0, tmp_path, args="f32[b]", labels=labels)
    with pytest.raises(DtypeError, match=r"it is complex64; expected integers"):
        publish(lambda x: jax.lax.complex(x, x), tmp_path, args="f32[b]", labels=labels)
    with pytest.raises(StructureError, match=r"be the output 'a_label', and there is one already"):
        publish(
            lambda x: {"a": x, "a_label": x}, tmp_path, args="f32[b,2]", labels={"a": ["b", "c"]}
        )


def test_of_several_signatures_those_with_the_output(tmp_path):
    spec = jax.ShapeDtypeStruct((2,), "float32")
    one = jax.export.export(jax.jit(lambda x: {"score": x}))(spec)
    other = jax.export.export(jax.jit(lambda x: {"value": x}))(spec)
    model = {"serving_default": one, "other": other}
    folder = publish(model, tmp_path, labels={"score": ["cat", "dog"]}).path
    loaded = tf.saved_model.load(folder).signatures
    assert set(loaded["other"](x=tf.constant([0, 1.0]))) == {"value"}
    assert loaded["serving_default"](x=tf.constant([0, 1.0]))["score_label"].numpy() == b"dog"
