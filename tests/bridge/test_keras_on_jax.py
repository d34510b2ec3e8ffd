"""The tests of the Keras layer once more, in a process whose Keras runs on JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")

ROOT = Path(__file__).parents[2]


def test_on_the_jax_backend(tmp_path):
    files = ["test_keras_layer.py", "test_keras_files.py"]
    paths = [str(ROOT / "tests" / "bridge" / name) for name in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *paths, "-q", "-x", f"--basetemp={tmp_path / 't'}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
