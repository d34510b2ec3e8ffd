"""The bar of `save`, `load` and `verify`: on a terminal, when it takes long, and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from tests.policy.source import ROOT

SAVE = """
import sys
import jax, jax.export, numpy as np
import bridge
from bridge.core import progress
progress._SILENT_SECONDS = float(sys.argv[2])
params = {"w": np.zeros((3 << 20, 8), np.float32)}
specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
x = jax.ShapeDtypeStruct((8,), np.float32)
exported = jax.export.export(jax.jit(lambda params, x: params["w"][0] + x))(specs, x)
bridge.save(exported, sys.argv[1], params=params)
"""
LOAD = """
import sys
import jax
import bridge
from bridge.core import progress
progress._SILENT_SECONDS = float(sys.argv[2])
mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
bridge.load(sys.argv[1], mesh=mesh).params
"""
VERIFY = """
import sys
import jax.export
import bridge
from bridge.core import progress
progress._SILENT_SECONDS = float(sys.argv[2])
exported = jax.export.export(jax.jit(jax.numpy.sin))(jax.ShapeDtypeStruct((3,), "float32"))
bridge.save(exported, sys.argv[1])
assert bridge.verify(sys.argv[1]).passed
"""
SLOW = """
import time
from bridge.core.progress import progress_bar
with progress_bar("Saving") as progress:
    for second in range(5):
        progress(second << 30, 8 << 30)
        time.sleep(0.6)
"""


def _on_a_terminal(code, *arguments):
    """Return what a process writes to a terminal on its standard error."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # how Linux says that the other side is closed
            break
        if not data:
            break
        written += data
    os.close(ours)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, written.decode()
    assert output == b""
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", written.decode())


def test_a_bar_on_a_terminal(tmp_path):
    text = _on_a_terminal(SAVE, tmp_path / "m", 0)
    assert re.search(r"Saving ━+.* [\d.]+/96\.0 MiB", text), text
    assert (tmp_path / "m" / "saved_model.pb").is_file()


def test_a_bar_for_what_is_placed_on_a_mesh(tmp_path):
    command = [sys.executable, "-c", SAVE, str(tmp_path / "m"), "0"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    text = _on_a_terminal(LOAD, tmp_path / "m", 0)
    assert re.search(r"Loading ━+.* 96\.0/96\.0 MiB", text), text


def test_a_bar_for_what_is_verified(tmp_path):
    """Each trial is one in JAX and one in TensorFlow."""
    text = _on_a_terminal(VERIFY, tmp_path / "m", 0)
    assert (found := re.search(r"Verifying ━+.* (\d+)/(\d+) +trials", text)), text
    assert int(found[2]) % 2 == 0
    assert f"{found[2]}/{found[2]}" in text


def test_none_for_what_is_fast(tmp_path):
    assert _on_a_terminal(SAVE, tmp_path / "m", 100) == ""


def test_it_appears_after_two_seconds():
    text = _on_a_terminal(SLOW)
    assert re.search(r"Saving ━+.* 4\.0/8\.0 GiB", text), text
    assert "0.0/8.0" not in text
    assert "1.0/8.0" not in text
    assert "2.0/8.0" not in text


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_none_without_a_terminal(tmp_path, environment):
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path / "m"), "0"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")
