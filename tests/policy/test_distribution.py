"""The distribution holds every package, and every dependency is pinned."""

from __future__ import annotations

import re
import tomllib

import pytest

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


@pytest.mark.parametrize("extra", ["test", "docs"])
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
