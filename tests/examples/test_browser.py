"""The page with digits shows in a browser what JAX reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from tests.examples.chromium import install, page_when_done
from tests.policy.source import ROOT

TUTORIAL = (ROOT / "docs/tutorials/onnx_browser.md").read_text()
PACKAGE = re.search(r"npm install (onnxruntime-web@\S+)", TUTORIAL)[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder, and what JAX said."""
    folder = tmp_path_factory.mktemp("page")
    command = [sys.executable, str(ROOT / "examples/browser/digits_page.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return folder, int(re.search(r"JAX reads (\d+) of 24", done.stdout)[1])


def _shown(folder):
    shown = json.loads((folder / "digits.json").read_text())
    return np.array(shown["images"], np.float32), shown["labels"]


def _read(folder):
    session = onnxruntime.InferenceSession(folder / "digits.onnx")
    images, _ = _shown(folder)
    (digits,) = session.run(["digit"], {"image": images})
    return digits.tolist()


def test_the_model_reads_what_jax_reads(page):
    folder, right = page
    _, labels = _shown(folder)
    assert sum(map(int.__eq__, _read(folder), labels)) == right >= 20


def test_the_tutorial_quotes_the_page(page):
    text = (page[0] / "index.html").read_text()
    quoted = re.search(r"```js\n(.*?)```", TUTORIAL, re.DOTALL)[1]
    assert all(line.strip() in text for line in quoted.splitlines())


def test_the_page_in_chromium(page, tmp_path):
    folder, right = page
    install(folder, PACKAGE)
    shown = page_when_done(folder, tmp_path)
    assert f"{right} of 24 right, with ONNX Runtime Web." in shown
    found = re.findall(r"<figcaption[^>]*>read (\d)", shown)
    assert list(map(int, found)) == _read(folder)
    assert shown.count('class="wrong"') == 24 - right
