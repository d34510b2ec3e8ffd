"""The page with digits shows in a browser, with LiteRT, what JAX reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.examples.chromium import install, page_when_done
from tests.policy.source import ROOT

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_litert")

GUIDE = (ROOT / "docs/how-to/litert.md").read_text()
PACKAGE = re.search(r"npm install (@litertjs/core@\S+)", GUIDE)[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder, and the digits and probabilities of JAX."""
    folder = tmp_path_factory.mktemp("page")
    script = ROOT / "examples/litert_in_a_browser/digits_page.py"
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    digits, probabilities = zip(*re.findall(r"^(\d) ([\d.]+)$", done.stdout, re.M), strict=True)
    return folder, list(map(int, digits)), np.array(probabilities, float)


def test_the_model_reads_what_jax_reads(page):
    folder, digits, probabilities = page
    shown = json.loads((folder / "digits.json").read_text())
    signature = interpreter.Interpreter(str(folder / "digits.tflite")).get_signature_runner()
    read = signature(image=np.array(shown["images"], np.float32))
    assert read["digit"].tolist() == digits
    np.testing.assert_allclose(read["probability"], probabilities, rtol=0, atol=2e-6)
    assert sum(map(int.__eq__, digits, shown["labels"])) >= 20


def test_the_page_in_chromium(page, tmp_path):
    folder, digits, probabilities = page
    install(folder, PACKAGE)
    shown = page_when_done(folder, tmp_path)
    labels = json.loads((folder / "digits.json").read_text())["labels"]
    right = sum(map(int.__eq__, digits, labels))
    assert f"{right} of 24 right, with LiteRT.js." in shown
    found = re.findall(r"<figcaption[^>]*>read (\d)", shown)
    assert list(map(int, found)) == digits
    found = np.array(re.findall(r'title="probability ([^"]+)"', shown), float)
    np.testing.assert_allclose(found, probabilities, rtol=0, atol=2e-6)
    assert shown.count('class="wrong"') == 24 - right
