"""Every block of code in the documentation runs, and prints what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.docs.blocks import read_page
from tests.docs.running import run_page
from tests.xla_flags import with_xla_flags

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
_RUN = ("python", "shell")
WITH_CODE = [p for p in PAGES if any(b.language in _RUN for b in read_page(p.read_text()).blocks)]
PINNED = re.search(r"^jax==([^;\s]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


@pytest.mark.skipif(jax.__version__ != PINNED, reason="the pages show what the pinned JAX prints")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page, tmp_path, monkeypatch, preloaded_python):
    monkeypatch.chdir(tmp_path)
    # For `verify`, and for pages that have several devices.
    monkeypatch.setattr(sys, "executable", preloaded_python)
    read = read_page(page.read_text())
    if read.needs and importlib.util.find_spec(read.needs) is None:
        pytest.skip(f"the page needs {read.needs}")
    if read.devices == 1 and not read.needs:
        if keras := sys.modules.get("keras"):
            keras.backend.clear_session()  # which counts the names of layers
        monkeypatch.syspath_prepend(tmp_path)
        assert run_page(page) > 0
        return
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs", str(page)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": with_xla_flags(f"--xla_force_host_platform_device_count={read.devices}"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r".*: [1-9]\d* blocks run\n", done.stdout)


def _page(tmp_path, monkeypatch, text):
    monkeypatch.setattr("tests.docs.running.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def test_a_block_that_continues_has_the_names_of_the_one_before(tmp_path, monkeypatch):
    text = "```python\nx = 1\n```\n\n<!-- continues -->\n```python\nprint(x)\n```\n"
    output = "<!-- output -->\n\n```text\n1\n```\n"
    assert run_page(_page(tmp_path, monkeypatch, text + output)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\n```\n```python\nx\n```\n", "line 4: NameError: name 'x'"),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n", "printed was\n1\n"),
        ("<!-- raises KeyError -->\n```python\nx = 1\n```\n", "line 2: no KeyError"),
        ("<!-- raises KeyError -->\n```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```shell\nrm -r x\n```\n", "is none that pages may have"),
        ("```shell\npip install 'jax-tf-bridge[nothing]'\n```\n", "nothing"),
        ("```shell\njax-tf-bridge inspect nowhere\n```\n", "inspect nowhere ended with 2"),
    ],
)
def test_a_wrong_page_is_found(tmp_path, monkeypatch, text, message):
    page = _page(tmp_path, monkeypatch, text)
    (tmp_path / "pyproject.toml").write_text("[project.optional-dependencies]\nonnx = []\n")
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_page(page)


def test_a_page_says_what_it_needs():
    assert read_page("<!-- needs torchax -->\n\nText.\n").needs == "torchax"
    assert read_page("Text.\n").needs is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```\n", "line 1: the language ''"),
        ("a\n<!-- continue -->\n```python\nx\n```\n", "line 3: the comment 'continue'"),
    ],
)
def test_a_page_that_says_something_unknown_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_page(text)
