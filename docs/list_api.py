"""Writes the lists of names into the pages of `docs/reference/api/`, for readers of Markdown.

`python docs/list_api.py` writes them anew. On the site each name of a list is followed by its
section, which is made of the docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = DOCS / "reference" / "api"
_ENTRY = re.compile(r"^::: ([\w.]+)$(?:\n    options: \{heading: ([\w.]+),)?", re.MULTILINE)
_LIST = re.compile(r"<!-- names -->\n.*?<!-- end -->\n\n", re.DOTALL)


def pages() -> dict[Path, str]:
    """Return each page with its list."""
    return {path: _with_list(path.read_text()) for path in sorted(PAGES.glob("*.md"))}


def _with_list(page: str) -> str:
    rows = "".join(f"| `{name}` | {sentence} |\n" for name, sentence in _names(page))
    table = f"<!-- names -->\n\n| name | |\n|---|---|\n{rows}\n<!-- end -->\n\n"
    bare = _LIST.sub("", page)
    first = _ENTRY.search(bare)
    assert first is not None, "a page of the reference has entries"
    return f"{bare[: first.start()]}{table}{bare[first.start() :]}"


def _names(page: str) -> Iterator[tuple[str, str]]:
    """Yield the names on a page with the first sentence about each."""
    for place, heading in _ENTRY.findall(page):
        path, name = _find(place)
        tree = ast.parse(path.read_text())
        defined = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        for each in [name] if name else _public(tree):
            # What makes the values of the page of results is no name of it.
            is_maker = not name and place.startswith("bridge.inspecting") and each.islower()
            if each in defined and not is_maker:
                sentence = (ast.get_docstring(defined[each]) or "").partition("\n")[0]
                yield heading or (each if name else f"{place}.{each}"), sentence


def _find(place: str) -> tuple[Path, str]:
    """Return the file of a name, and the name in it; empty for a module itself."""
    path = DOCS.parent.joinpath(*place.split("."))
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py"), ""
    return path.parent.with_suffix(".py"), path.name


def _public(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
