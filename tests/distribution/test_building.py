"""The wheel works in a fresh environment, and the source distribution is whole."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.distribution.building import build, copy_tree, run_backend
from tests.policy.source import PACKAGES, ROOT

# What a user does first, without TensorFlow.
PROGRAM = """
import sys
import bridge
import jax.numpy as jnp

assert bridge.__file__.startswith(sys.prefix), bridge.__file__
params = {"w": jnp.ones((3, 2))}
saved = bridge.save(lambda p, x: jnp.tanh(x @ p["w"]), "m", params=params, args="f32[b,3]")
model = bridge.load(saved)
print(model(jnp.zeros((4, 3))).shape, bridge.__version__)
assert "tensorflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The Python of an environment with the wheel, which finds everything else in this one."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A path in a .pth file has none of the links that editable installs put there.
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    command = ["-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    wheel = str(built[1])
    _run(sys.executable, *command, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return python


def _run(*command, cwd=None, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= variables
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(wheel):
    """The files of a wheel with their bytes, but for the list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}


def test_the_wheel_in_a_fresh_environment(installed, tmp_path):
    printed = _run(str(installed), "-c", PROGRAM, cwd=tmp_path)
    version = metadata.version("jax-tf-bridge")
    assert printed == f"(4, 2) {version}\n"
    command = str(installed.with_name("jax-tf-bridge"))
    assert _run(command, "--version", cwd=tmp_path) == f"jax-tf-bridge {version}\n"
    assert "serving_default" in _run(command, "inspect", "m", cwd=tmp_path)
    assert "pass arrays of the shapes" in _run(command, "explain", "StructureError", cwd=tmp_path)


def test_the_wheel_has_the_packages_and_nothing_else(built):
    names = _files(built[1]).keys()
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    others = {*(f"{package}/py.typed" for package in PACKAGES), "bridge/cli/troubleshooting.md"}
    assert {name for name in names if ".dist-info/" not in name} == sources | others


def test_the_wheel_of_the_checkout_is_that_of_the_source_distribution(built, tmp_path):
    copy_tree(ROOT, tmp_path / "tree")
    wheel = run_backend(tmp_path / "tree", "wheel", tmp_path)
    assert _files(wheel) == _files(built[1])


def test_the_source_distribution_is_whole(built):
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert {"CHANGELOG.md", "README.md", "LICENSE", "pyproject.toml", "Makefile"} <= names
    for folder in ("docs", "examples", "tests"):
        there = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert there - names == set()
    assert not {name for name in names if "__pycache__" in name}


def test_the_workflow_installs_the_wheel(built, tmp_path):
    """The command of the example for continuous integration, with the files that it asks for."""
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / "examples" / "export_in_ci.yml").read_text())
    steps = workflow["jobs"]["export"]["steps"]
    command = next(step["run"] for step in steps if step.get("name") == "Install")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.search(r"\[([\w-]+)\]", command)[1] in project["optional-dependencies"]
    (tmp_path / "wheels").mkdir()
    shutil.copy(built[1], tmp_path / "wheels")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    alone = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_TARGET": str(tmp_path / "installed")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    _run("bash", "-e", "-c", command, cwd=tmp_path, PATH=path, **alone)
    assert (tmp_path / "installed" / "bridge" / "py.typed").is_file()
