"""Importing a package leaves the heavy frameworks out of the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.policy.source import ROOT, write_tree

# Not etils: JAX imports it itself where it is installed.
FRAMEWORKS = ("ai_edge_litert", "keras", "onnx", "sklearn", "tensorflow", "tf_keras")
LEFT_OUT = {
    "bridge": (*FRAMEWORKS, "jax", "jaxlib", "numpy"),
    "savedmodel": (*FRAMEWORKS, "jax", "jaxlib"),
    "xla_call_module": (*FRAMEWORKS, "jax", "jaxlib"),
}


def _imported(package, *, root=ROOT):
    """The modules at the top of `sys.modules` in a process that imported one package."""
    code = f"import {package}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("package", LEFT_OUT)
def test_frameworks_are_left_out(package):
    assert _imported(package).intersection(LEFT_OUT[package]) == set()


@pytest.mark.parametrize("package", LEFT_OUT)
def test_a_framework_is_seen(tmp_path, package):
    (tmp_path / "tensorflow.py").touch()
    write_tree(tmp_path, {f"{package}/__init__.py": "import tensorflow"})
    assert _imported(package, root=tmp_path).intersection(LEFT_OUT[package]) == {"tensorflow"}
