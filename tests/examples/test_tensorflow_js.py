"""TensorFlow.js makes of files for converters, in Node and in a browser, what JAX does.

The tests run where `tensorflowjs_converter` is on the PATH and Node finds `@tensorflow/tfjs`, which
`NODE_PATH` may say where to look for. They download nothing.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bridge
from tests.bridge.for_converters import MODELS, inputs_of, result_of
from tests.examples.chromium import page_when_done, skip_without_chromium
from tests.policy.source import ROOT

FOLDER = ROOT / "examples/tensorflow_js"

if shutil.which("tensorflowjs_converter") is None:
    pytest.skip("tensorflowjs_converter is not on the PATH", allow_module_level=True)
if shutil.which("node") is None:
    pytest.skip("there is no node", allow_module_level=True)


def _node(*command, given=None):
    command = ["node", *map(str, command)]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )


FOUND = _node("-p", "require.resolve('@tensorflow/tfjs/package.json')")
if FOUND.returncode:
    pytest.skip("node finds no @tensorflow/tfjs", allow_module_level=True)
MODULES = Path(FOUND.stdout.strip()).parents[2]


def _run(program, model, inputs):
    done = _node(program, model, given=json.dumps(inputs))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_node(name, tmp_path):
    function, params, args = MODELS[name]
    options = {"operations": "tensorflow", "for_converters": True}
    bridge.save(function, tmp_path / "open", params=params, args=args, **options)
    runpy.run_path(str(FOLDER / "digits_page.py"))["convert"](tmp_path / "open", tmp_path / "page")
    for x in inputs_of(name):
        (found,) = _run(FOLDER / "run.js", tmp_path / "page", {"x": x.tolist()}).values()
        np.testing.assert_allclose(found, result_of(name, x), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of the example, and the digits and probabilities of JAX."""
    folder = tmp_path_factory.mktemp("page")
    command = [sys.executable, str(FOLDER / "digits_page.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "node_modules").symlink_to(MODULES)
    digits, probabilities = zip(*re.findall(r"^(\d) ([\d.]+)$", done.stdout, re.M), strict=True)
    return folder, list(map(int, digits)), np.array(probabilities, float)


def test_the_example_in_node(page):
    folder, digits, probabilities = page
    images = json.loads((folder / "images.json").read_text())
    read = _run(folder / "run.js", folder / "model", images)
    assert read["digit"] == digits
    np.testing.assert_allclose(read["probability"], probabilities, rtol=0, atol=1e-5)
    labels = json.loads((folder / "labels.json").read_text())
    assert sum(map(int.__eq__, digits, labels)) >= 20


def test_the_guide_quotes_the_page():
    text, guide = (FOLDER / "index.html").read_text(), ROOT / "docs/how-to/converters.md"
    quoted = re.search(r"```js\n(.*?)```", guide.read_text(), re.DOTALL)[1]
    assert all(line.strip() in text for line in quoted.splitlines())


def test_the_page_in_chromium(page, tmp_path):
    skip_without_chromium()
    folder, digits, probabilities = page
    shown = page_when_done(folder, tmp_path)
    labels = json.loads((folder / "labels.json").read_text())
    right = sum(map(int.__eq__, digits, labels))
    assert f"{right} of 24 right, with TensorFlow.js (" in shown
    found = re.findall(r"<figcaption[^>]*>read (\d)", shown)
    assert list(map(int, found)) == digits
    found = np.array(re.findall(r'title="probability ([^"]+)"', shown), float)
    np.testing.assert_allclose(found, probabilities, rtol=0, atol=1e-5)
    assert shown.count('class="wrong"') == 24 - right
