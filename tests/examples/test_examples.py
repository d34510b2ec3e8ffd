"""Every example runs as it stands, in a process of its own."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import bridge
import savedmodel
from tests.policy.source import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path):
    def run(name):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / f"{name}.py"), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_digits(run, tmp_path, monkeypatch):
    printed = run("digits")
    right = [int(count) for count in re.findall(r"(\d+) of 397 right", printed)]
    assert len(right) == 2
    assert right[0] == right[1] >= 380
    difference = re.search(r"greatest difference of a probability: (\S+)", printed)
    # float32 softmax, computed by two builds of XLA
    assert float(difference[1]) < 1e-5
    assert printed.startswith("1  Python with JAX, where TensorFlow cannot be imported")
    assert "times as long" in printed.splitlines()[-1]
    assert printed.count("WRONG") == 1
    assert len(re.findall(r"read \d(?![\d,])", printed)) == 3
    assert "█" in printed
    next_command = re.search(r"^   (\S+jax-tf-bridge inspect \S+)$", printed, re.MULTILINE)
    looked = subprocess.run(next_command[1].split(), capture_output=True, text=True, check=True)
    assert "serving_default" in looked.stdout

    # A narrow terminal that has ASCII alone.
    monkeypatch.setenv("COLUMNS", "30")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    report = runpy.run_path(str(ROOT / "examples" / "digits.py"))["report"]
    report(tmp_path, Console(highlight=False))
    narrow.seek(0)
    assert "@@" in narrow.read()


def test_digits_say_what_they_do_while_they_do_it(tmp_path):
    command = [sys.executable, "-u", str(ROOT / "examples" / "digits.py"), "--no-comparison"]
    with subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("1  Python with JAX")
        assert "trains on 1,400 scanned digits" in process.stdout.readline()
        assert not (tmp_path / "model").exists()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "jax2tf" not in rest


def test_fine_tuning(run, tmp_path):
    printed = run("fine_tuning")
    before, loaded, trained, read, after = map(float, re.findall(r"([\d.]+)%", printed))
    assert loaded == before
    assert trained >= before + 3
    assert read == trained
    assert after >= trained - 1
    # the shapes and names are the old ones, the values are not
    old, new = (savedmodel.read(tmp_path / name).variables for name in ("model", "trained"))
    assert old == new
    assert not any(
        np.array_equal(a.to_numpy(), b.to_numpy()) for a, b in zip(old, new, strict=True)
    )


def test_publish_weights(run, tmp_path):
    lines = run("publish_weights").splitlines()
    came_along = re.compile(r"; 2 warmup requests, program (\d+)$")
    assert len({came_along.search(line)[1] for line in lines[:5]}) == 1
    shares = [tuple(map(float, re.findall(r"([\d.]+)%", line))) for line in lines[:5]]
    assert all(abs(jax_share - served) < 0.5 for jax_share, served in shares)
    assert shares[-1][0] > 90 > 50 > shares[0][0]
    assert lines[5:] == ["left: 3, 4, 5"]
    first, last = (bridge.load(tmp_path / "digits" / name).params for name in "35")
    assert not np.array_equal(first["output"]["bias"], last["output"]["bias"])


def test_sharded_serving(run, tmp_path):
    printed = run("sharded_serving")
    # TensorFlow finds sizes that follow from a symbolic batch in GSPMD's form only.
    assert "mesh of 8 devices: data 2 x model 4 (GSPMD)" in printed
    assert "in args[0]['up'] [64,256]: split by (whole, model), 1 x 4 parts" in printed
    assert re.search(r"data=1 +0 +1 +2 +3\n", printed)
    whole, part = map(int, re.search(r"parameters: (\d+) KB, (\d+) KB", printed).groups())
    assert part < whole / 3.9
    differences = re.findall(r"(?:one device|\d x \d): (\S+)", printed)
    assert len(differences) == 4
    # sums over 256 float32 numbers in another order
    assert all(float(difference) < 1e-4 for difference in differences)
    assert (tmp_path / "mesh.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("framework", "package", "fixed", "trainable"),
    [
        ("flax", "flax", "batch_stats/BatchNorm_0/mean", "params/Conv_0/kernel"),
        ("nnx", "flax", "norm/mean", "conv/kernel"),
        ("haiku", "haiku", "state/batch_norm/_/mean_ema/average", "params/conv2_d/w"),
        ("equinox", "equinox", None, "conv/weight"),
        ("keras", "keras", "sequential/batch_normalization/moving_mean", "sequential/dense/kernel"),
    ],
)
def test_from_a_framework(run, tmp_path, framework, package, fixed, trainable):
    pytest.importorskip(package)
    printed = run(f"from_{framework}")
    kinds = dict(re.findall(r"^(\S+):0 .* (trainable|fixed)$", printed, re.MULTILINE))
    assert kinds[trainable] == "trainable"
    assert fixed is None or kinds[fixed] == "fixed"
    difference = re.search(r"greatest difference .*: (\S+)\n", printed)
    # float32, computed by two builds of XLA
    assert float(difference[1]) < 1e-5
    (signature,) = bridge.inspect(tmp_path / "model").signatures
    assert [tensor.name for tensor in signature.inputs] == ["image"]
    assert not isinstance(signature.inputs[0].shape[0], int)
    assert signature.gradient_order == 1


def test_keras_fine_tuning(run, tmp_path):
    pytest.importorskip("keras")
    printed = run("keras_fine_tuning")
    assert "trained: network/head/bias, network/head/kernel\n" in printed
    assert "frozen:  network/body/conv1, network/body/conv2\n" in printed
    before, after, loaded = map(float, re.findall(r"([\d.]+)%", printed))
    # It has not seen half of the digits before.
    assert before < 60
    assert after > 90
    assert loaded == after
    assert "what is frozen is as it was\n" in printed
    difference = re.search(r"greatest difference of a logit: (\S+)", printed)
    assert float(difference[1]) == 0


def test_export_in_ci(tmp_path):
    """Each step of the workflow that is a command runs as it stands, one after another."""
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / "examples" / "export_in_ci.yml").read_text())
    ((_, job),) = workflow["jobs"].items()
    commands = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    del commands["Install"]  # tests/distribution/test_building.py runs it
    (tmp_path / "network.py").write_text(
        "def predict(params, image):\n"
        "    return {'scores': image.reshape(image.shape[0], -1) @ params['w']}\n"
    )
    np.savez(tmp_path / "params.npz", w=np.ones((784, 10), np.float32))
    program = tmp_path / "bin" / "jax-tf-bridge"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m bridge \"$@\"\n")
    program.chmod(0o755)
    places = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    assert len(commands) == 3
    for name, command in commands.items():
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=os.environ | places,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    report = json.loads((tmp_path / "export.json").read_text())
    assert report["check"]["passed"]
    assert report["warmup"]["records"] == 3
    uploaded = next(
        step["with"]["path"] for step in job["steps"] if "upload" in step.get("uses", "")
    )
    assert all((tmp_path / path).exists() for path in uploaded.split())


def test_beam_inference(run):
    pytest.importorskip("apache_beam")
    printed = run("beam_inference")
    shares = dict(re.findall(r"^(\d): ([\d.]+)% recognized$", printed, re.MULTILINE))
    assert set(shares) == set("0123456789")
    assert min(map(float, shares.values())) > 75
    assert "397 images" in printed


def test_text_serving(run, tmp_path):
    printed = run("text_serving")
    by_jax, by_tensorflow = printed.split("by the session loader, in another process:\n")
    answers = re.compile(r"^(.*): (good|bad) \(([\d.]+)\)$", re.MULTILINE)
    # float32, computed by two builds of XLA, of which three digits are shown
    wanted, found = map(answers.findall, (by_jax, by_tensorflow))
    assert [label for _, label, _ in wanted] == ["good", "bad", "good"]
    assert [answer[:2] for answer in found] == [answer[:2] for answer in wanted]
    scores = [float(score) for *_, score in wanted]
    assert [float(score) for *_, score in found] == pytest.approx(scores, abs=2e-3)
    assert "version 1 with 2 warmup requests\n" in printed
    assert (tmp_path / "models" / "reviews" / "1" / "assets" / "vocabulary.txt").is_file()


def test_decoder_with_cache(run):
    lines = run("decoder_with_cache").splitlines()
    by_jax, *by_tensorflow = (line for line in lines if line[:1].isdigit())
    assert len(by_jax.split()) == 64
    assert by_tensorflow == [by_jax] * 2


def test_every_example_has_a_test():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    (marks,) = test_from_a_framework.pytestmark
    tested |= {f"from_{framework}" for framework, *_ in marks.args[1]}
    assert {example.stem for example in EXAMPLES} <= tested
