"""A format of files is looked up: no verb, no command and no writer imports the room of one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.policy.imports import imports_of, is_within
from tests.policy.source import ROOT, read_modules, write_tree

# The rooms of targets, each with a line in `bridge.formats.format_registry.FORMATS`.
TARGETS = ("bridge.litert", "bridge.onnx")
PUBLIC_NAMES = "bridge"


def _imports_of_targets(modules):
    """The imports of a target's room from outside of it, lazy ones and those for types included."""
    return [
        f"{found.where}: {found.name}"
        for module in modules
        if not any(is_within(module.name, target) for target in TARGETS)
        if module.name != PUBLIC_NAMES
        for found in imports_of(module)
        if any(is_within(found.name, target) for target in TARGETS)
    ]


def test_no_room_imports_that_of_a_target():
    assert _imports_of_targets(read_modules()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import bridge.onnx.onnx_report",
        "def lazy():\n    from bridge.litert.runtime import describe",
        "import importlib\nimportlib.import_module('bridge.onnx.conversion')",
    ],
    ids=["top", "lazy", "computed"],
)
def test_an_import_of_a_target_is_found(tmp_path, text):
    files = {"bridge/cli/main.py": text, "bridge/cli/__init__.py": ""}
    assert len(_imports_of_targets(write_tree(tmp_path, files))) == 1


def test_a_format_is_one_line_of_the_registry(tmp_path):
    """A format from elsewhere has its command and its report, for one line in the list."""
    (tmp_path / "elsewhere.py").write_text(
        "from dataclasses import replace\n"
        "from bridge.formats.file_format import ConvertCommand\n"
        "from bridge.formats.exported_format import EXPORTED\n"
        "EVERY = replace(EXPORTED, name='a file of elsewhere',\n"
        "    recognises=lambda path, head: path.endswith('.els'),\n"
        "    inspect=lambda path: 'a report', convert=print,\n"
        "    command=ConvertCommand('elsewhere', '.els', {'depth': {'type': int}}))\n"
    )
    code = (
        "from bridge.formats import format_registry as registry\n"
        "registry.FORMATS = ('elsewhere:EVERY', *registry.FORMATS)\n"
        "import bridge, pathlib\n"
        "from bridge.cli.main import main\n"
        "pathlib.Path('f.els').write_text('x')\n"
        "print(bridge.inspect('f.els'))\n"
        "print(main(['elsewhere', 'f.bin', 'out.els', '--depth', '3']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report, request, *_ = done.stdout.splitlines()
    assert report == "a report"
    assert "options={'depth': 3}" in request
