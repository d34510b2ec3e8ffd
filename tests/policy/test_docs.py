"""All that the documentation names exists, and all that is public is in it."""

from __future__ import annotations

import ast
import json
import re
import runpy

import pytest

from bridge.formats.format_registry import all_formats
from tests.benchmarks.measure import Ratio
from tests.benchmarks.recording import record
from tests.policy.source import ROOT, read_modules

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


def test_the_page_of_commands_has_each():
    commands = re.findall(r"_Command\(\s*\"(\w+)\"", (ROOT / "bridge/cli/main.py").read_text())
    rows = re.findall(
        r"^\| `(\w+)[ `]", (ROOT / "docs/reference/commands.md").read_text(), re.MULTILINE
    )
    commands += [format_.command.name for format_ in all_formats() if format_.command]
    assert len(commands) > 10
    assert {*rows} == {*commands}


def test_every_public_name_is_in_the_reference():
    shown = {heading or place for place, heading in _entries()}
    # All errors are entries of one module.
    covered = {*shown, *(place.rpartition(".")[0] for place, heading in _entries() if not heading)}
    missing = [name for name in _public_names() if name not in covered]
    assert [name for name in missing if not name.endswith(".InteropError")] == []


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/draw_*.py")), ids=lambda p: p.stem)
def test_a_picture_is_what_its_script_draws(script):
    drawn = runpy.run_path(str(script))
    pictures = drawn["pictures"]() if "pictures" in drawn else {drawn["PICTURE"]: drawn["draw"]()}
    assert [path for path, text in pictures.items() if path.read_text() != text] == []


def test_the_lists_of_names_are_those_of_the_docstrings():
    """`python docs/list_api.py` writes them."""
    pages = runpy.run_path(str(ROOT / "docs" / "list_api.py"))["pages"]()
    assert [path for path, text in pages.items() if path.read_text() != text] == []
    assert all("| `" in text for text in pages.values())


def test_the_figures_of_the_pages_are_those_of_the_benchmarks():
    """`python docs/draw_performance.py` writes them, and the plots."""
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_performance.py"))
    texts = drawn["texts"]()
    assert [path.name for path in texts] == ["performance.md", "README.md"]
    assert [path for path, text in texts.items() if path.read_text() != text] == []
    # Nothing else on the page is a figure that the record might not have.
    page = re.sub(r"<!-- \w+ -->\n.*?<!-- end -->", "", texts[drawn["PAGE"]], flags=re.DOTALL)
    assert re.findall(r"\d+\.\d|\d+ (?:ms|s|MB)\b", page) == []
    assert all(f"performance_{name}.svg" in texts[drawn["PAGE"]] for name in drawn["PLOTS"])


def test_what_is_recorded_is_what_there_is_to_run():
    runs = json.loads((ROOT / "docs/reference/benchmarks.json").read_text())["runs"]
    known = (ROOT / "tests/benchmarks/__main__.py").read_text()
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_performance.py"))["PLOTS"].values()
    names = {*runs, *(name for _, several in drawn for name in several.split())}
    assert {name for name in names if f'    "{name}": ' not in known} == set()


def test_a_benchmark_is_recorded_beside_the_others(tmp_path):
    file = tmp_path / "benchmarks.json"
    slow, fast = (Ratio("a / b", ratios, 1.0, "2 s", "1 s") for ratios in ((2.0, 3.0), (0.5,)))
    for name, ratio in (("first", slow), ("other", fast), ("first", fast)):
        unmeasured = [
            Ratio("c: not measured", (float("nan"),), None, *texts)
            for texts in (("", ""), ("2 s", "fails"))
        ]
        record(name, [ratio, *unmeasured], file)
    runs = json.loads(file.read_text())["runs"]
    assert [r["name"] for r in runs["first"]["results"]] == ["a / b", "c: not measured"]
    assert "median" not in runs["first"]["results"][1]
    assert {name: run["results"][0]["median"] for name, run in runs.items()} == {
        "first": 0.5, "other": 0.5,
    }  # fmt: skip
    assert {"date", "machine", "versions"} <= runs["other"].keys()
