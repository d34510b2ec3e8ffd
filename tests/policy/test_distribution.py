"""The distribution holds every package, and every dependency is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata

import pytest

from tests.policy import extras
from tests.policy.source import PACKAGES, ROOT, read_modules, write_tree

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==[\w.!+]+( ; \S.*)?")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^\]]*)\])?(?P<rest>.*)")


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _folders(modules):
    return {module.name for module in modules if module.is_package}


def _untyped(root):
    return [package for package in PACKAGES if not (root / package / "py.typed").is_file()]


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned(text):
    """The names that a constraints file pins, and its lines that are no pin."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = {line: PIN.fullmatch(line) for line in lines}
    names = {_normal(pin["name"]) for pin in pins.values() if pin}
    return names, [line for line, pin in pins.items() if not pin]


def _required(project, extra):
    """The names that the distribution needs with one extra, its own extras followed."""
    wanted, names = [extra], set()
    requirements = list(project["dependencies"])
    while wanted:
        requirements += project["optional-dependencies"][wanted.pop()]
        while requirements:
            found = REQUIREMENT.match(requirements.pop())
            if _normal(found["name"]) == project["name"]:
                wanted += found["extras"].split(",")
            elif "platform_machine !=" not in found["rest"]:
                names.add(_normal(found["name"]))
    return names


def test_every_package_is_listed():
    assert _folders(read_modules()) == set(_project()["tool"]["setuptools"]["packages"])


def test_a_package_that_is_not_listed_is_found(tmp_path):
    modules = write_tree(tmp_path, {"bridge/keras/__init__.py": ""})
    assert "bridge.keras" in _folders(modules)


def test_every_package_is_typed():
    assert _untyped(ROOT) == []


def test_an_untyped_package_is_found(tmp_path):
    write_tree(tmp_path, {"bridge/py.typed": "", "savedmodel/py.typed": ""})
    assert _untyped(tmp_path) == ["xla_call_module"]


@pytest.mark.parametrize("extra", ["test", "test-jax", "docs"])
def test_every_dependency_is_pinned(extra):
    names, others = _pinned((ROOT / "constraints.txt").read_text())
    assert others == []
    assert _required(_project()["project"], extra) - names == set()


@pytest.mark.parametrize("line", ["jax", "jax>=0.7", "-r other.txt", "jax @ file:x", "jax==0.7.*"])
def test_a_line_that_is_no_pin_is_found(line):
    assert _pinned(f"# made by hand\nnumpy==2.0\n{line}\n") == ({"numpy"}, [line])


def test_dependencies_are_followed_through_extras():
    project = {
        "name": "made-up",
        "dependencies": ["ml_dtypes>=0.4"],
        "optional-dependencies": {
            "test": ["made-up[a,b]", "pytest>=8"],
            "a": ["x; platform_machine != 'x86_64'"],
            "b": ["etils[epath]>=1"],
            "c": ["not-asked-for"],
        },
    }
    assert _required(project, "test") == {"ml-dtypes", "pytest", "etils"}


def test_the_page_has_what_each_extra_brings():
    """`python -m tests.policy.extras` writes it."""
    assert extras.shown(extras.PAGE.read_text()) == extras.brought(extras.read_project())
    assert f"({extras.PAGE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()


def test_what_an_extra_brings():
    project = {
        "name": "made-up",
        "dependencies": ["ml_dtypes>=0.4", "jax"],
        "optional-dependencies": {
            "a": ["x>=2; platform_machine != 'x86_64'", "y[z]>=1.5; platform_machine == 'x86_64'"],
            "b": ["made-up[a,c]", "w>=3"],
        },
    }
    cells = {"(none)": "ml_dtypes ≥ 0.4, jax", "`a`": "y ≥ 1.5", "`b`": "`a`, `c`, w ≥ 3"}
    assert extras.brought(project) == cells
    assert extras.shown("| `a` | y ≥ 1.5 | for a |\n| b | no | extra |\n") == {"`a`": "y ≥ 1.5"}


# It asks for the plain `tensorflow`, and is installed with `--no-deps`; the pages say so.
BESIDE = {"tensorflow-serving-api"}


def _imports(text):
    """The top-level names that a program imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def _unbrought(imported, brought):
    """The imports that no requirement brings, of what is installed here."""
    found = metadata.packages_distributions()
    others = set(imported) - sys.stdlib_module_names - set(PACKAGES)
    return {name for name in others if not {_normal(d) for d in found.get(name, ())} & brought}


def test_one_extra_brings_what_every_example_imports():
    texts = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    # A sibling of an example is no package.
    own = {path.stem for path in (ROOT / "examples").rglob("*.py")}
    imported = {name for text in texts for name in _imports(text)} - own
    assert len(imported) > 10
    brought = _required(_project()["project"], "examples") | BESIDE
    assert _unbrought(imported, brought) == set()
    pages = (ROOT / "examples/serving/README.md", extras.PAGE)
    assert all(f"--no-deps {name}" in page.read_text() for name in BESIDE for page in pages)


def test_an_import_that_nothing_brings_is_found():
    assert _unbrought({"numpy", "pytest", "os", "bridge"}, {"numpy"}) == {"pytest"}
