"""Public is what `__all__` lists, and it is listed a second time in `public_names.json`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from tests.policy.public_names import (
    MOST_NAMES,
    expected_names,
    names_hidden_by_modules,
    problems,
)
from tests.policy.source import PACKAGES, write_tree


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names(package):
    assert list(problems(importlib.import_module(package), expected_names()[package])) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_hidden_by_a_module(package):
    assert names_hidden_by_modules(package, expected_names()[package]) == ()


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_can_be_listed_and_imported_together(package):
    imported = {}
    exec(f"from {package} import *", imported)
    names = set(expected_names()[package])
    assert names <= imported.keys()
    assert names <= set(dir(importlib.import_module(package)))


@pytest.mark.parametrize("package", PACKAGES)
def test_other_names_are_no_attributes(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        importlib.import_module(package).nothing  # noqa: B018


def test_a_name_of_another_package_says_what_to_call():
    with pytest.raises(AttributeError, match=r"no attribute 'export'\. To do: call bridge\.save"):
        importlib.import_module("bridge").export  # noqa: B018


def test_submodules_that_users_name_need_no_import():
    program = "import bridge; print(bridge.meshes.__name__, bridge.testing.__name__)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["bridge.meshes", "bridge.testing"]


@pytest.mark.parametrize("package", [*PACKAGES, "bridge.serving"])
def test_what_is_listed_is_public(package):
    listed = {name for name in dir(importlib.import_module(package)) if name[:2] != "__"}
    modules = {"beam", "jax2tf", "keras", "meshes", "serving", "testing", "tf_keras"}
    names = set(importlib.import_module(package).__all__)
    assert listed == names | (modules if package == "bridge" else set())


@pytest.mark.parametrize("module", ["beam", "jax2tf", "keras", "meshes", "testing", "tf_keras"])
def test_modules_that_users_name_list_what_is_public(module):
    found = getattr(importlib.import_module("bridge"), module)
    assert dir(found) == sorted(found.__all__)


def test_modules_whose_package_is_missing_are_not_listed():
    """`help(bridge)` imports all that is listed."""
    program = (
        "import sys, bridge\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "print('beam' in dir(bridge), 'convert' in dir(bridge))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "True"]


def _verb():
    """Does nothing, and shows it.

    >>> _verb()
    """


def _verb_without_example():
    """Does nothing."""


def _package(names, **values):
    package = ModuleType("made_up")
    vars(package).update(dict.fromkeys(names, _verb) | values, __all__=names)
    return package


def test_a_good_package_passes():
    assert list(problems(_package(["a", "b"]), ["a", "b"])) == []


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        (_package(["b", "a"]), "not sorted"),
        (_package([f"a{i:02}" for i in range(MOST_NAMES + 1)]), "besides errors, at most 14"),
        (_package(["a", "b", "c"]), "the list says"),
        (_package(["a"]), "the list says"),
        (_package(["a", "b"], b=None), "b does not resolve"),
        (_package(["a", "b"], b=_verb_without_example), "b has no runnable example"),
        (ModuleType("made_up"), "the list says"),
    ],
)
def test_a_bad_package_is_found(package, problem):
    assert any(problem in found for found in problems(package, ["a", "b"]))


def test_a_hidden_name_is_found(tmp_path):
    lazy = "def __getattr__(name):\n    from bridge.convert import convert\n    return convert\n"
    function = "def convert():\n    pass\n"
    write_tree(tmp_path, {"bridge/__init__.py": lazy, "bridge/convert.py": function})
    assert names_hidden_by_modules("bridge", ["convert"], root=tmp_path) == ("convert",)
    write_tree(tmp_path, {"bridge/__init__.py": "from bridge.convert import convert\n"})
    assert names_hidden_by_modules("bridge", ["convert"], root=tmp_path) == ()
