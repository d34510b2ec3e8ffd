"""The program in C reads with LiteRT what JAX reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.policy.source import ROOT

pytest.importorskip("ai_edge_litert")
pytest.importorskip("ai_edge_litert")

FOLDER = ROOT / "examples" / "litert_in_c"
SOURCE = FOLDER / "read_digits.c"


def _run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def _build(folder):
    """The program, built by the commands that its first comment has."""
    lines = re.search(r"it is built by\n(.*?)\*/", SOURCE.read_text(), re.DOTALL)[1]
    script = re.sub(r"^ \*", "", lines, flags=re.MULTILINE).replace("python", sys.executable)
    script = script.replace("cc -std=c11", "cc -Wall -Wextra -Werror -std=c11")
    shutil.copy(SOURCE, folder)
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "read_digits"


def _numbers(printed):
    *rows, last = printed.splitlines()
    digits, probabilities = zip(*map(str.split, rows), strict=True)
    return list(map(int, digits)), np.array(probabilities, float), last


@pytest.mark.skipif(sys.platform != "linux", reason="the commands are those of Linux")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_program_in_c_reads_digits(tmp_path):
    written = _run(sys.executable, FOLDER / "digits_model.py", tmp_path)
    assert written.returncode == 0, written.stderr
    program = _build(tmp_path)
    done = _run(program, tmp_path / "digits.tflite", tmp_path / "samples.bin")
    assert done.returncode == 0, done.stderr
    digits, probabilities, right = _numbers(done.stdout)
    expected, expected_probabilities, expected_right = _numbers(written.stdout)
    assert (len(digits), digits, right) == (24, expected, expected_right)
    assert int(right.split()[0]) >= 20
    np.testing.assert_allclose(probabilities, expected_probabilities, rtol=0, atol=2e-6)

    # What is no model is an error of the runtime.
    (tmp_path / "broken.tflite").write_bytes(b"no model")
    done = _run(program, tmp_path / "broken.tflite", tmp_path / "samples.bin")
    assert done.returncode == 1
    assert re.search(r"broken\.tflite: LiteRtStatus \d+$", done.stderr.rstrip(), re.MULTILINE)
