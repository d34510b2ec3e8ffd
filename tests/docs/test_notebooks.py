"""The notebooks have the cells of their pages, and run."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path

import jax
import pytest

from bridge.cli.main import main
from tests.docs.notebooks import NOTEBOOKS, to_notebook
from tests.docs.test_pages import PINNED

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_cells_of_its_page(name):
    page = (TUTORIALS / f"{name}.md").read_text()
    assert (TUTORIALS / f"{name}.ipynb").read_text() == to_notebook(page)
    assert f"({name}.ipynb)" in page


@pytest.mark.skipif(jax.__version__ != PINNED, reason="the pages show what the pinned JAX prints")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((TUTORIALS / f"{name}.ipynb").read_text())
    names = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                _run(cell, tmp_path, names)
    assert printed.getvalue()


def _run(cell, folder, names):
    code = "".join(cell["source"])
    if code.startswith("!"):
        for line in code.splitlines():
            program, *arguments = shlex.split(line.removeprefix("!"))
            assert program == "jax-tf-bridge"
            assert main(arguments) == 0
        return
    path = folder / f"{cell['id']}.py"
    path.write_text(code)
    exec(compile(code, str(path), "exec"), names)


def test_text_code_and_outputs_become_cells():
    page = (
        "# A page\n\n<!-- continues -->\n```python\nprint(1)\n```\n\n<!-- output -->\n\n"
        "```text\n1\n```\n\nMore.\n\n<!-- not run: no -->\n```shell\nmake\n```\n"
    )
    text, code, more = json.loads(to_notebook(page))["cells"]
    assert text["source"] == ["# A page"]
    assert (code["source"], code["outputs"][0]["text"]) == (["print(1)"], ["1\n"])
    assert more["source"] == ["More.\n", "\n", "```shell\n", "make\n", "```"]
