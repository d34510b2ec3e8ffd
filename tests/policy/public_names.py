"""The public names of the packages, against the list in `public_names.json`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from tests.policy.source import ROOT

MOST_NAMES = 14

_RESOLVE_AFTER_SUBMODULES = """
import importlib, sys, types
package, *names = sys.argv[1:]
for name in names:
    try:
        importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
root = importlib.import_module(package)
print(*(name for name in names if isinstance(getattr(root, name), types.ModuleType)))
"""


def expected_names() -> dict[str, list[str]]:
    """The names that each package promises."""
    return json.loads(Path(__file__).with_suffix(".json").read_text())


def problems(package: ModuleType, expected: Sequence[str]) -> Iterator[str]:
    """Return what is wrong with the public names of an imported package."""
    names = list(getattr(package, "__all__", ()))
    if names != sorted(names):
        yield f"__all__ is not sorted: {names}"
    besides_errors = [name for name in names if not name.endswith("Error")]
    if len(besides_errors) > MOST_NAMES:
        yield f"{len(besides_errors)} names besides errors, at most {MOST_NAMES}"
    if sorted(names) != sorted(expected):
        yield f"__all__ is {names}, the list says {list(expected)}"
    for name in names:
        value = getattr(package, name, None)
        if value is None:
            yield f"{name} does not resolve"
        elif inspect.isfunction(value) and ">>> " not in (inspect.getdoc(value) or ""):
            yield f"{name} has no runnable example"


def names_hidden_by_modules(
    package: str, names: Sequence[str], *, root: Path = ROOT
) -> tuple[str, ...]:
    """The public names that are a module once the submodule of that name was imported.

    Python binds a submodule on its package, so a name that `__getattr__` would resolve later is
    lost: `import bridge.convert` must leave `bridge.convert` the function.
    """
    command = [sys.executable, "-c", _RESOLVE_AFTER_SUBMODULES, package, *names]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())
