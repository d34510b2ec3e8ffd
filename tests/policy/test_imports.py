"""Imports point one way, and never in a circle."""

from __future__ import annotations

import pytest

from tests.policy.imports import find_cycle, import_graph, imports_of, own_root_imports
from tests.policy.source import parse_module, read_modules, write_tree

MAY_IMPORT = {
    "bridge": ("bridge", "savedmodel", "xla_call_module"),
    "savedmodel": ("savedmodel", "xla_call_module"),
    "xla_call_module": ("xla_call_module",),
}


def _upward_imports(modules):
    return [
        f"{found.where}: {found.name}"
        for module in modules
        for found in imports_of(module)
        if (target := found.name.partition(".")[0]) in MAY_IMPORT
        and target not in MAY_IMPORT[module.package]
    ]


def test_no_import_cycle():
    assert find_cycle(import_graph(read_modules())) == ()


def test_packages_depend_one_way():
    assert _upward_imports(read_modules()) == []


def test_no_module_imports_its_own_root():
    assert own_root_imports(read_modules()) == []


@pytest.mark.parametrize(
    "back",
    [
        "import bridge.a",
        "from bridge import a",
        "from bridge.a import name",
        "from . import a",
        "from .a import name",
        "def lazy():\n    from bridge.a import name\n",
        "import importlib\ndef lazy():\n    return importlib.import_module('bridge.a')\n",
        "import importlib\nL = ['bridge.a']\ndef lazy():\n    importlib.import_module(L[0])\n",
        "from importlib import import_module as load\nL = ['bridge.a']\nload(L[0])\n",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import bridge.a\n",
    ],
)
def test_a_cycle_is_found(tmp_path, back):
    files = {"bridge/a.py": "import savedmodel.b", "savedmodel/b.py": "import bridge.c"}
    modules = write_tree(tmp_path, files | {"bridge/c.py": back})
    assert find_cycle(import_graph(modules)) == ("bridge.a", "savedmodel.b", "bridge.c", "bridge.a")


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_an_import_for_types_makes_no_cycle(tmp_path, test):
    types_only = f"if {test}:\n    import bridge.a\n"
    modules = write_tree(tmp_path, {"bridge/a.py": "import bridge.c", "bridge/c.py": types_only})
    assert find_cycle(import_graph(modules)) == ()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("savedmodel/a.py", "import bridge"),
        ("xla_call_module/a.py", "from savedmodel.model import SavedModel"),
        ("xla_call_module/a.py", "def lazy():\n    import bridge.convert\n"),
    ],
)
def test_an_upward_import_is_found(tmp_path, path, text):
    assert len(_upward_imports(write_tree(tmp_path, {path: text}))) == 1


@pytest.mark.parametrize("text", ["import bridge", "from bridge import save", "from . import save"])
def test_an_import_of_the_own_root_is_found(tmp_path, text):
    assert len(own_root_imports(write_tree(tmp_path, {"bridge/a.py": text}))) == 1


def test_an_import_of_a_module_from_the_own_root_passes(tmp_path):
    files = {"bridge/a.py": "from bridge import save", "bridge/save.py": ""}
    assert own_root_imports(write_tree(tmp_path, files)) == []


def test_relative_imports_are_resolved(tmp_path):
    path = tmp_path / "c.py"
    module = parse_module("bridge.keras.c", path, "from .. import save\nfrom .d import name\n")
    assert [found.name for found in imports_of(module)] == ["bridge.save", "bridge.keras.d.name"]
