"""Notebooks of tutorials: the text, the code and the outputs of a page as cells.

`python -m tests.docs.notebooks` writes them anew beside their pages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.docs.blocks import Block, read_page

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ("flax_serving", "keras_layer", "onnx_runtime")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_FENCE_LINES = re.compile(r"```\w*\n\Z")
_FORMAT = {"nbformat": 4, "nbformat_minor": 5}
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def to_notebook(text: str) -> str:
    """Return the notebook of a page: blocks that run are cells of code, all else is Markdown."""
    cells, position = [], 0
    for block in read_page(text).blocks:
        if "not run" in block.directives:
            continue
        _add_text(cells, _FENCE_LINES.sub("", text[position : block.span[0]]))
        position = text.index("\n", block.span[1]) + 1
        if "output" in block.directives:
            cells[-1]["outputs"] = [_output(block)]
        else:
            cells.append(_code(block))
    _add_text(cells, text[position:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return json.dumps({"cells": cells, "metadata": _METADATA, **_FORMAT}, indent=1) + "\n"


def _add_text(cells, text):
    if source := _COMMENT.sub("", text).strip():
        cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(source)})


def _code(block: Block):
    code = block.code.rstrip()
    if block.language == "shell":
        code = "\n".join(f"!{line}" for line in code.replace("\\\n", " ").splitlines())
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": _lines(code),
    }


def _output(block: Block):
    return {"name": "stdout", "output_type": "stream", "text": _lines(block.code)}


def _lines(text):
    return text.splitlines(keepends=True)


def main() -> None:
    """Write the notebooks beside their pages."""
    for name in NOTEBOOKS:
        page = ROOT / "docs" / "tutorials" / f"{name}.md"
        page.with_suffix(".ipynb").write_text(to_notebook(page.read_text()))


if __name__ == "__main__":
    main()
