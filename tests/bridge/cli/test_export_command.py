"""`jax-tf-bridge export`: the whole job from a shell, the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
import savedmodel
from bridge.cli.export_command import _shown_progress
from bridge.cli.main import main
from bridge.verifying.verification import VerifyReport
from savedmodel.manifest import MANIFEST_FILE, compare_manifest, read_manifest
from tests.policy.source import ROOT
from xla_call_module.errors import MissingDependencyError

SOURCE = """
import functools
import jax
import jax.numpy as jnp


def predict(params, image):
    flat = image.reshape(image.shape[0], -1)
    return {"score": jax.nn.softmax(jnp.tanh(flat @ params["dense"]["w"]) + params["dense"]["b"])}


def double(x, *, scale):
    return x * 2 * scale


def train(params, x):
    new = jax.tree.map(lambda leaf: leaf - x.mean(), params["dense"])
    return {"loss": x.sum()}, {"dense": new}


def move(params, x):
    return params["dense"]["b"] + 1, x


both = {"train": train, "move": move, "read": lambda params, x: params["dense"]["b"] * x}


def wrong(x):
    raise KeyError("of the user")


class Model:
    def predict(self, x):
        return jnp.sin(x)


model = Model()
wide = jax.jit(lambda x: x.astype("float64") * 2)
no_gradient = lambda x: jax.lax.while_loop(lambda v: (v < 9).all(), lambda v: v + 1, x)
"""
ARGS = ["--args", "f32[b,4,2]", "--params", "params.npz"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "exported_network.py").write_text(SOURCE)
    rng = np.random.default_rng(0)
    params = {"dense/w": rng.normal(size=(8, 3)).astype("f"), "dense/b": np.zeros(3, "f")}
    np.savez(folder / "params.npz", **params)
    return folder


@pytest.fixture
def command(project, monkeypatch, capsys, tmp_path):
    """Runs the command in a project: its status, what it has printed, and what it has said."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(target, *options, out=None):
        status = main(["export", target, "--out", str(out or tmp_path / "model"), *options])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def _expected(image):
    with np.load("params.npz") as params:
        w, b = params["dense/w"], params["dense/b"]
    return jax.nn.softmax(jnp.tanh(image.reshape(len(image), -1) @ w) + b)


def test_the_whole_job(command, tmp_path, preloaded):
    pytest.importorskip("bridge.serving")
    status, printed, said = command(
        "exported_network:predict", *ARGS, "--platforms", "cpu,cuda,tpu", "--tensorflow", "2.16",
        "--gradient-order", "1", "--warmup", "1,8,32", "--check", "--json",
    )  # fmt: skip
    found = json.loads(printed)
    assert (status, said) == (0, "")
    assert found["check"]["passed"]
    assert found["unchecked"] is None
    assert found["warmup"]["records"] == 3
    (signature,) = found["signatures"]
    assert signature["platforms"] == ["cpu", "cuda", "tpu"]
    assert signature["gradient_order"] == 1
    assert [(p["name"], p["shape"]) for p in found["parameters"]] == [
        ("dense/b", [3]),
        ("dense/w", [8, 3]),
    ]
    image = np.random.default_rng(1).normal(size=(5, 4, 2)).astype("f")
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    with tf.GradientTape() as tape:
        score = loaded(tf.constant(image))["score"]
    np.testing.assert_allclose(score, _expected(image), rtol=1e-5)
    assert tape.gradient(score, loaded.params["dense"]["w"]).shape == (8, 3)
    assert compare_manifest(tmp_path / "model") == ()
    assert bridge.inspect(tmp_path / "model").manifest.to_json() == found["manifest"]


@pytest.fixture(scope="module")
def in_two_places(project, tmp_path_factory):
    """The same command in two copies of the project, with other hash seeds and ways to start it."""
    # What pip makes of the entry point, without being installed.
    program = tmp_path_factory.mktemp("bin") / "jax-tf-bridge"
    program.write_text("import sys\nfrom bridge.cli.main import main\nsys.exit(main())\n")
    folders = []
    for number, start in enumerate([["-m", "bridge"], [str(program)]]):
        copy = tmp_path_factory.mktemp(f"copy{number}") / ("deep/" * number) / "checkout"
        shutil.copytree(project, copy, ignore=shutil.ignore_patterns("__pycache__"))
        options = [*ARGS, "--constraint", "b >= 1", "--warmup", "1,2"]
        command = [sys.executable, *start, "export", "exported_network:predict", *options]
        environment = os.environ | {"PYTHONHASHSEED": str(number + 1), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--out", "model"],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        folders.append(copy / "model")
    return folders


def _hashes(folder):
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_the_same_inputs_give_the_same_bytes(in_two_places):
    first, second = map(_hashes, in_two_places)
    assert first == second
    assert first.keys() == {
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
        "assets.extra/tf_serving_warmup_requests",
        MANIFEST_FILE,
    }


def test_nothing_tells_where_it_was_made(in_two_places):
    for folder in in_two_places:
        for file in folder.rglob("*"):
            if file.is_file():
                assert str(folder.parent).encode() not in file.read_bytes()
    # What stops an older TensorFlow is still named with its line.
    assert b"exported_network.py" in (in_two_places[0] / "saved_model.pb").read_bytes()


def test_the_manifest(in_two_places, project):
    folder = in_two_places[0]
    manifest = read_manifest(folder)
    hashes = _hashes(folder)
    del hashes[MANIFEST_FILE]
    assert {name: file.sha256 for name, file in manifest.files.items()} == hashes
    assert manifest.versions["jax"] == jax.__version__
    assert {"python", "jaxlib", "numpy", "protobuf", "jax-tf-bridge"} <= manifest.versions.keys()
    assert manifest.source is None
    digest = hashlib.sha256((project / "params.npz").read_bytes()).hexdigest()
    assert manifest.request["params_sha256"] == digest
    assert manifest.request["args"] == "f32[b,4,2]"
    assert manifest.request["constraints"] == ["b >= 1"]


def test_the_bytes_tell_other_parameters(in_two_places, command, tmp_path):
    command("exported_network:predict", *ARGS, "--constraint", "b >= 1", "--warmup", "1,2")
    assert (
        _hashes(tmp_path / "model")["saved_model.pb"] == _hashes(in_two_places[0])["saved_model.pb"]
    )
    command("exported_network:predict", *ARGS, "--overwrite", "--constraint", "b >= 2")
    assert (
        _hashes(tmp_path / "model")["saved_model.pb"] != _hashes(in_two_places[0])["saved_model.pb"]
    )


def test_options_of_save(command, tmp_path):
    status, printed, _ = command(
        "exported_network:predict", *ARGS, "--signature", "classify", "--inputs", "image=pixels",
        "--outputs", "probability", "--trainable", "*/w", "--platforms", "cpu",
        "--gradient-order", "0", "--disabled-checks", "platform", "--linalg", "lapack",
    )  # fmt: skip
    assert status == 0
    assert "classify(pixels: float32[b,4,2]) -> probability: float32[b,3], for cpu\n" in printed
    report = bridge.inspect(tmp_path / "model")
    (signature,) = report.signatures
    assert (signature.key, signature.gradient_order) == ("classify", 0)
    assert signature.disabled_checks == ("platform",)
    assert {p.name: p.trainable for p in report.parameters} == {"dense/b": False, "dense/w": True}
    for names, expected in (("none", False), ("dense", True)):
        command("exported_network:predict", *ARGS, "--trainable", names, "--overwrite")
        parameters = bridge.inspect(tmp_path / "model").parameters
        assert [p.trainable for p in parameters] == [expected] * 2


@pytest.mark.parametrize(
    ("target", "options", "inputs", "outputs"),
    [
        ("exported_network:model.predict", ["--args", "bf16[2,b]"], ["x: bfloat16[2,b]"], "bfloat"),
        (
            "exported_network:double",
            ["--args", "f32[b]", "--args", "scale=f32[]"],
            ["x: float32[b]", "scale: float32[]"],
            "output_0: float32[b]",
        ),
        (
            "exported_network:double",
            ["--args", "i64[2], scale=i64[]", "--x64"],
            ["x: int64[2]", "scale: int64[]"],
            "output_0: int64[2]",
        ),
        ("exported_network:wide", ["--args", "f32[3]", "--x64"], ["x: float32[3]"], "float64[3]"),
    ],
)
def test_targets_and_arguments(command, target, options, inputs, outputs):
    status, printed, said = command(target, *options, "--gradient-order", "0")
    assert status == 0, said
    assert all(text in printed for text in inputs)
    assert outputs in printed.partition("->")[2]
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("kind", ["orbax", "safetensors"])
def test_other_files_of_parameters(command, project, tmp_path, kind):
    with np.load(project / "params.npz") as params:
        arrays = {key: jnp.asarray(value) for key, value in params.items()}
    if kind == "orbax":
        checkpoint = pytest.importorskip("orbax.checkpoint")
        dense = {key.removeprefix("dense/"): value for key, value in arrays.items()}
        with checkpoint.StandardCheckpointer() as saver:
            saver.save(project / "checkpoint", {"step": 3, "params": {"dense": dense}})
        options = ["--params", "checkpoint", "--params-key", "params"]
    else:
        pytest.importorskip("safetensors.flax").save_file(
            {key.replace("/", "|"): value for key, value in arrays.items()},
            project / "p.safetensors",
        )
        options = ["--params", "p.safetensors", "--params-separator", "|"]
    status, _, said = command("exported_network:predict", *ARGS[:2], *options)
    assert status == 0, said
    image = np.ones((2, 4, 2), np.float32)
    found = bridge.load(tmp_path / "model")(image)["score"]
    np.testing.assert_allclose(found, _expected(image), rtol=1e-5)


def test_a_module_of_a_framework(command, project, tmp_path):
    pytest.importorskip("equinox")
    (project / "equinox_network.py").write_text(
        "import equinox, jax\n"
        "print('imported')\n"
        "network = equinox.filter_vmap(equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)))\n"
    )
    status, printed, said = command("equinox_network:network", "--args", "f32[b,3]", "--json")
    assert status == 0, said
    assert said == "imported\n"
    assert json.loads(printed)["path"] == str(tmp_path / "model")
    report = bridge.inspect(tmp_path / "model")
    assert [p.name for p in report.parameters][:2] == ["layers/0/bias", "layers/0/weight"]
    assert "equinox" in report.manifest.versions


def test_an_exported_file(command, project, tmp_path):
    exported = export.export(jax.jit(jnp.cos), platforms=["cpu", "tpu"])(np.ones(3, "f"))
    (project / "cosine.stablehlo").write_bytes(exported.serialize(vjp_order=1))
    status, printed, _ = command("cosine.stablehlo")
    assert status == 0
    assert "-> output_0: float32[3], for cpu, tpu\n" in printed
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(loaded(tf.zeros(3)), np.ones(3))
    status, _, said = command("cosine.stablehlo", "--args", "f32[3]", "--overwrite")
    assert status == 2
    assert "is for a function or a module, and the model is exported" in said


def test_a_difference_has_its_own_status(command, tmp_path, monkeypatch):
    exported = VerifyReport(str(tmp_path / "model"), "2.21.0", "it is broken", ())
    monkeypatch.setattr("bridge.cli.export_command.verify", lambda *args, **kwargs: exported)
    status, printed, _ = command("exported_network:predict", *ARGS, "--check")
    assert status == 1
    assert "it is broken" in printed
    assert (tmp_path / "model" / "saved_model.pb").is_file()


def test_the_tolerance_of_the_check(command):
    call = ["exported_network:predict", *ARGS, "--overwrite", "--check", "--tolerance"]
    status, printed, _ = command(*call, "0,0")
    assert status == 1
    assert "(rtol=0, atol=0)" in printed
    assert command(*call, "1e-3,1e-5")[0] == 0


def test_a_check_that_cannot_be_made_has_its_own_status(command, tmp_path, monkeypatch):
    def no_tensorflow(*args, **kwargs):
        raise MissingDependencyError("TensorFlow is not installed.")

    monkeypatch.setattr("bridge.cli.export_command.verify", no_tensorflow)
    status, printed, said = command("exported_network:predict", *ARGS, "--check", "--json")
    assert status == 3
    assert json.loads(printed)["unchecked"] == "TensorFlow is not installed."
    assert "is written, and not checked: TensorFlow is not installed." in said
    assert (tmp_path / "model" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("exported_network:predikt", [], "has no 'predikt'. Did you mean 'predict'?"),
        ("exported_network:model.call", [], "exported_network.model has no 'call'"),
        ("no_such_network:f", [], "There is no module 'no_such_network' in"),
        ("exported_network.py:predict", [], "To do: write exported_network:function"),
        ("exported_network", [], "nor of the form module:function"),
        ("params.npz", [], "is not a serialized Exported"),
        ("exported_network:predict", [], "predict, a function, is exported for shapes"),
        ("exported_network:predict", ["--args", "f32[b,4"], "the ']' of the shape is missing"),
        ("exported_network:predict", [*ARGS[:3], "no.npz"], "no.npz"),
        ("exported_network:predict", [*ARGS, "--params-key", "dens"], "no 'dens' among ['dense']"),
        ("exported_network:predict", [*ARGS, "--platforms", "gpus"], "'gpus' is unknown"),
        ("exported_network:predict", [*ARGS, "--trainable", "head"], "fits none of the 2 param"),
        ("exported_network:predict", [*ARGS, "--tensorflow", "1.15"], "older than 2.14"),
        ("exported_network:predict", [*ARGS, "--inputs", "a,b"], "2 names are given"),
        ("exported_network:predict", [*ARGS, "--warmup", "0"], "0 among the batch sizes"),
        ("exported_network:predict", [*ARGS, "--constraint", "b >"], "polymorphic_constraints"),
        ("exported_network:predict", [*ARGS, "--disabled-checks", "x"], "check 'x' is unknown"),
        ("exported_network:double", ["--args", "f64[2], scale=f64[]"], "--x64"),
        ("exported_network:double", ["--params-key", "a"], "--params-key is for --params"),
    ],
)
def test_what_cannot_be_exported(command, tmp_path, target, options, message):
    status, printed, said = command(target, *options)
    assert (status, printed) == (2, "")
    assert message in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_what_the_user_raises_is_shown(command, project, tmp_path):
    status, _, said = command("exported_network:wrong", "--args", "f32[3]")
    assert status == 2
    assert 'exported_network.py", line ' in said
    assert "cannot be exported for these arguments: KeyError: 'of the user'" in said
    (project / "broken_network.py").write_text("import not_there_either\n")
    status, _, said = command("broken_network:f", "--args", "f32[3]")
    assert status == 2
    assert "broken_network cannot be imported: ModuleNotFoundError: No module named 'not_" in said
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(command, tmp_path):
    command("exported_network:predict", *ARGS)
    before = _hashes(tmp_path / "model")
    status, _, said = command("exported_network:model.predict", "--args", "f32[3]")
    assert status == 2
    assert "exists. To do: pass --overwrite to replace it" in said
    status, _, _ = command("exported_network:wrong", "--args", "f32[3]", "--overwrite")
    assert status == 2
    assert _hashes(tmp_path / "model") == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.filterwarnings("always")
def test_warnings_are_said(command):
    status, printed, said = command("exported_network:no_gradient", "--args", "f32[3]", "--json")
    assert status == 0
    (warning,) = json.loads(printed)["warnings"]
    assert "is saved without a gradient, because JAX cannot differentiate it" in warning
    assert said == f"jax-tf-bridge: {warning}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--python", "python3"], "--python is for --check"),
        (["--tolerance", "1e-3"], "--tolerance is for --check"),
        (["--check", "--out", "gs://bucket/model"], "--check needs a folder"),
        (["--gradient-order", "-1"], "--gradient-order is at least 0"),
        (["--inputs", "a,b=c"], "mixes names and old=new"),
        (["--warmup", "one"], "is not a list of batch sizes"),
    ],
)
def test_options_without_effect_are_refused(options, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", "exported_network:predict", "--out", "model", *options])
    assert message in capsys.readouterr().err


def test_the_statuses_are_documented(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["export", "--help"])
    shown = capsys.readouterr().out
    for status in range(4):
        assert f"\n  {status}  " in shown
    assert "f32[b,28,28]" in shown


def test_the_revision(command, tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "tracked_network.py").write_text("def f(x):\n    return x * 2\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.com", *arguments]
        done = subprocess.run(
            command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    monkeypatch.chdir(checkout)
    commit = git("rev-parse", "HEAD")
    for changed, said in ((False, "\n"), (True, ", with changes\n")):
        _, printed, _ = command("tracked_network:f", "--args", "f32[b]", "--overwrite")
        assert f"from revision {commit}{said}" in printed
        source = {"revision": commit, "changed": changed}
        assert bridge.inspect(tmp_path / "model").manifest.source == source
        (checkout / "tracked_network.py").write_text("def f(x):\n    return x * 3\n")


def test_progress_is_shown_on_a_terminal_alone(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with _shown_progress() as progress:
            progress("reading the parameters")
            time.sleep(0.2)
        assert ("reading the parameters" in stream.getvalue()) == shown


def test_the_revision_where_there_is_no_git(command, tmp_path):
    _, printed, _ = command("exported_network:predict", *ARGS, "--revision", "v1.2")
    assert "from revision v1.2, perhaps with changes\n" in printed
    assert read_manifest(tmp_path / "model").source == {"revision": "v1.2", "changed": None}


ALL = ["dense/b", "dense/w"]


@pytest.mark.parametrize(
    ("target", "updates", "request_", "assigned"),
    [
        ("train", "1", 1, {"serving_default": ALL}),
        ("train", "serving_default=1", {"serving_default": 1}, {"serving_default": ALL}),
        ("move", "dense/b=0", {"dense/b": 0}, {"serving_default": ["dense/b"]}),
        (
            "both",
            "train=1, move:dense/b=0",
            {"train": 1, "move": {"dense/b": 0}},
            {"train": ALL, "move": ["dense/b"], "read": []},
        ),
    ],
)
def test_signatures_that_assign(command, tmp_path, target, updates, request_, assigned):
    status, _, _ = command(
        f"exported_network:{target}", "--args", "f32[3]", "--params", "params.npz",
        "--updates", updates,
    )  # fmt: skip
    assert status == 0
    file = savedmodel.read(tmp_path / "model")
    names = [variable.name for variable in file.variables]
    found = {s.key: sorted(names[v] for v in s.assigned_variables) for s in file.signatures}
    assert found == assigned
    assert read_manifest(tmp_path / "model").request["updates"] == request_


def test_a_position_that_is_none(capsys):
    for text in ("first", "train=", "a:b:c=1", "train=0,train=1", "train=0,train:w=1", "=0"):
        with pytest.raises(SystemExit, match="2"):
            main(["export", "a:b", "--out", "c", "--updates", text])
        assert "is neither a position such as 0" in capsys.readouterr().err
