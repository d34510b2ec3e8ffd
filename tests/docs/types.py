"""Checks the types of the Python blocks of pages, as an editor does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.blocks import read_page

ROOT = Path(__file__).parents[2]
# The types of these are not ours to mend: their own examples do not pass.
_OTHERS = ("flax", "haiku", "keras", "sklearn", "tensorflow", "tf_keras")
_IMPORTED = re.compile(rf"^ *(?:from|import) ((?:{'|'.join(_OTHERS)})[.\w]*)", re.MULTILINE)
_STUB = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"


def programs_of(page: Path) -> dict[str, str]:
    """Return the programs on a page by name: a block with those that continue it.

    A block that ends in an error may be one that a checker refuses, and is left out.
    """
    programs: dict[str, str] = {}
    name = ""
    for block in read_page(page.read_text()).blocks:
        if block.language != "python" or "raises" in block.directives:
            continue
        if "continues" not in block.directives or not name:
            name = f"{page.relative_to(ROOT).with_suffix('')}_{block.line}.py"
            name = name.replace("/", "_").replace("-", "_")
            programs[name] = ""
        programs[name] += block.code
    return programs


def type_errors(checker: str, programs: Mapping[str, str], folder: Path) -> list[str]:
    """Return what a checker finds wrong with programs, which are written to a folder."""
    for name, program in programs.items():
        (folder / name).write_text(program)
        for module in _IMPORTED.findall(program):
            stub = folder / "stubs" / module.replace(".", "/") / "__init__.pyi"
            stub.parent.mkdir(parents=True, exist_ok=True)
            stub.write_text(_STUB)
    return CHECKERS[checker](sorted(programs), folder)


def _mypy(names, folder):
    configuration = folder / "mypy.ini"
    text = f"[mypy]\nmypy_path = {ROOT}:{folder}/stubs\n[mypy-jax.*]\nimplicit_reexport = True\n"
    configuration.write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", configuration, "--no-error-summary"]
    options = ["--ignore-missing-imports", "--check-untyped-defs"]
    cache = ["--cache-dir", ROOT / ".mypy_cache" / "pages"]
    printed = _printed([*command, *options, *cache, *names], folder)
    return [line for line in printed.splitlines() if ": note: " not in line]


def _pyright(names, folder):
    configuration = {
        "include": names,
        "extraPaths": [str(ROOT)],
        "stubPath": "stubs",
        "reportMissingImports": False,  # of modules that are blocks of the page, and of the stubs
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(configuration))
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", folder]
    found = json.loads(_printed(command, folder))["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    return [
        f"{Path(e['file']).name}:{e['range']['start']['line'] + 1}: {e['message']}" for e in errors
    ]


def _printed(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


CHECKERS = {"mypy": _mypy}
if shutil.which("pyright"):
    CHECKERS["pyright"] = _pyright
