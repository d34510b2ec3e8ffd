"""The rooms are layers."""

from __future__ import annotations

import pytest

from tests.policy.architecture import draw_architecture
from tests.policy.layers import (
    LAYERS,
    file_circle,
    layer_order,
    room_imports,
    rooms,
    upward_imports,
)
from tests.policy.source import read_modules, write_tree


def test_every_room_has_its_layer():
    assert rooms(read_modules()) == set().union(*layer_order())


def test_imports_go_down():
    assert upward_imports(read_modules(), layer_order()) == []


def test_files_do_not_import_each_other_in_a_circle():
    assert file_circle(read_modules()) == []


def test_a_circle_of_files_is_found(tmp_path):
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bridge.core.b import B"
    files = {"bridge/core/__init__.py": "", "bridge/core/a.py": typed}
    files["bridge/core/b.py"] = "def lazy():\n    import bridge.core.a"
    assert set(file_circle(write_tree(tmp_path, files))) == {"bridge.core.a", "bridge.core.b"}


def test_every_room_has_its_page():
    packages = [module for module in read_modules() if module.is_package]
    assert [module.name for module in packages if not module.tree.body] == []
    assert len(packages) > len(LAYERS)


@pytest.mark.parametrize(
    "text",
    [
        "from bridge.save import save",
        "def lazy():\n    import bridge.save",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bridge.save import save",
        "import importlib\nimportlib.import_module('bridge.save')",
    ],
    ids=["top", "lazy", "types", "computed"],
)
def test_an_upward_import_is_found(tmp_path, text):
    files = {"bridge/core/names.py": text, "bridge/core/__init__.py": "", "bridge/save.py": ""}
    modules = write_tree(tmp_path, files)
    assert ("bridge.core", "bridge.save") in room_imports(modules)
    assert len(upward_imports(modules, layer_order())) == 1


def test_rooms_of_one_layer_do_not_import_each_other(tmp_path):
    files = {"bridge/save.py": "import bridge.jax2tf", "bridge/jax2tf.py": ""}
    assert len(upward_imports(write_tree(tmp_path, files), layer_order())) == 1


def test_a_room_without_a_layer_is_found(tmp_path):
    modules = write_tree(
        tmp_path, {"bridge/elsewhere/__init__.py": "", "bridge/elsewhere/a.py": ""}
    )
    assert rooms(modules) - set().union(*layer_order()) == {"bridge.elsewhere"}


def test_another_import_changes_the_drawing(tmp_path):
    page = '"""A."""'
    plain = {f"{room.replace('.', '/')}/__init__.py": page for room in set().union(*layer_order())}
    drawing = draw_architecture(write_tree(tmp_path, plain))
    other = {"bridge/save/__init__.py": f"{page}\nimport bridge.core"}
    assert draw_architecture(write_tree(tmp_path, other)) != drawing
