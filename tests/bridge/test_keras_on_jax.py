"""The tests of the Keras layer once more, in a process whose Keras runs on JAX."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.policy.source import ROOT

pytest.importorskip("keras")


# What is different on each backend: how steps run, and where state, keys and constants live.
# A process without JAX takes longer than all of these.
FEW = "fit_evaluate or a_step_is or state_and_keys or a_file or named_by"


@pytest.mark.parametrize(
    "selection", [FEW, pytest.param("test", marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_on_the_jax_backend(tmp_path, selection):
    files = ["test_keras_layer.py", "test_keras_files.py"]
    paths = [str(ROOT / "tests" / "bridge" / name) for name in files]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *paths,
            "-q",
            "-x",
            "-k",
            selection,
            f"--basetemp={tmp_path / 't'}",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
