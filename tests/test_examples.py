"""Every example runs as it stands, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import savedmodel

ROOT = Path(__file__).parents[1]
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


def test_digits(run, tmp_path):
    printed = run("digits")
    right = [int(count) for count in re.findall(r"(\d+) of 397 right", printed)]
    assert len(right) == 2
    assert right[0] == right[1] >= 380
    difference = re.search(r"greatest difference of a probability: (\S+)", printed)
    # float32 softmax, computed by two builds of XLA
    assert float(difference[1]) < 1e-5
    assert "saved_model.pb" in printed
    assert "import TensorFlow" in printed
    assert "█" in printed
    assert (tmp_path / "model" / "saved_model.pb").is_file()


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


def test_beam_inference(run):
    pytest.importorskip("apache_beam")
    printed = run("beam_inference")
    shares = dict(re.findall(r"^(\d): ([\d.]+)% recognized$", printed, re.MULTILINE))
    assert set(shares) == set("0123456789")
    assert min(map(float, shares.values())) > 75
    assert "397 images" in printed


def test_every_example_has_a_test():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {example.stem for example in EXAMPLES} <= tested


def test_readme_code(tmp_path, monkeypatch):
    """The README's Python runs from top to bottom, and each block makes what it is about."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    made = ("exported", "model", "g", "signature", "by_row", "variable", "jax2tf", "network")
    assert len(blocks) == len(made)
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for number, (code, name) in enumerate(zip(blocks, made, strict=True)):
        namespace.pop(name, None)
        exec(compile(code, f"README block {number}", "exec"), namespace)
        assert name in namespace
