"""What the documentation names exists, and what is public is in it."""

from __future__ import annotations

import ast
import json
import re
import runpy

import pytest

from tests.policy.source import ROOT, read_modules

MAX_README_LINES = 150
PAGES = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    ]
)
_PATH = re.compile(
    r"(?<![\w/.-])(?:bridge|savedmodel|xla_call_module|tests|examples|docs)/[\w./-]*\w/?"
)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# An entry of the API reference: where the name is defined, and the name that users import.
_ENTRY = re.compile(r"^::: ([\w.]+)$(?:\n    options: \{heading: ([\w.]+),)?", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def missing_paths(text):
    """Return the files and folders of this project that a text names and that are not there."""
    return [path for path in _PATH.findall(text) if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_links_lead_somewhere(page):
    text = page.read_text()
    assert missing_paths(text) == []
    links = _LINK.findall(_FENCED.sub("", text))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_read_in_one_go():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= MAX_README_LINES, "the rest belongs into docs/"


def test_a_missing_path_is_found():
    assert missing_paths("see `bridge/elsewhere.py` and `bridge/save.py`") == [
        "bridge/elsewhere.py"
    ]


def _definitions():
    """Return every module of the packages, and every name that one defines at its top."""
    names = set()
    for module in read_modules():
        names.add(module.name)
        names |= {
            f"{module.name}.{name}"
            for node in module.tree.body
            for name in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [ast.unparse(target) for target in getattr(node, "targets", ())]
            )
        }
    return names


def _public_names():
    """Return the public names of each package, and the public modules of `bridge`."""
    names = json.loads((ROOT / "tests/policy/public_names.json").read_text())
    (serving,) = (module for module in read_modules() if module.name == "bridge.serving")
    yield from (f"{package}.{name}" for package in names for name in names[package])
    yield from (f"bridge.serving.{name}" for name in _assigned(serving, "__all__"))
    (root,) = (module for module in read_modules() if module.name == "bridge")
    yield from (f"bridge.{name}" for name in _assigned(root, "_MODULES") if name != "serving")


def _assigned(module, name):
    (value,) = (
        node.value
        for node in module.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return ast.literal_eval(value)


def _entries():
    pages = "".join(page.read_text() for page in ROOT.glob("docs/reference/api/*.md"))
    return _ENTRY.findall(pages)


def test_every_entry_of_the_reference_is_defined():
    assert [place for place, _ in _entries() if place not in _definitions()] == []


def test_every_public_name_is_in_the_reference():
    shown = {heading or place for place, heading in _entries()}
    # All errors are entries of one module.
    covered = {*shown, *(place.rpartition(".")[0] for place, heading in _entries() if not heading)}
    missing = [name for name in _public_names() if name not in covered]
    assert [name for name in missing if not name.endswith(".InteropError")] == []


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/draw_*.py")), ids=lambda p: p.stem)
def test_a_picture_is_what_its_script_draws(script):
    drawn = runpy.run_path(str(script))
    assert drawn["PICTURE"].read_text() == drawn["draw"]()
