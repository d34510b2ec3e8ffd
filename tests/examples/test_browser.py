"""The page with digits shows in a browser what JAX reads."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import onnxruntime
import pytest

from tests.policy.source import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
NPM = shutil.which("npm")
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


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.skipif(CHROMIUM is None or NPM is None, reason="it needs Chromium and npm")
def test_the_page_in_chromium(page, tmp_path):
    folder, right = page
    command = [NPM, "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"npm has no {PACKAGE} here: {done.stderr[-200:]}")
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = _dom(f"http://127.0.0.1:{server.server_port}/", tmp_path)
        server.shutdown()
    assert f"{right} of 24 right, with ONNX Runtime Web." in shown
    found = re.findall(r"<figcaption[^>]*>read (\d)", shown)
    assert list(map(int, found)) == _read(folder)
    assert shown.count('class="wrong"') == 24 - right


def _dom(address, profile):
    """The page as Chromium has it after its program has run."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=60000", f"--user-data-dir={profile}", address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout
