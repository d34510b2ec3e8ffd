"""The table of extras in docs/how-to/install.md: what each brings, as pyproject.toml has it.

`python -m tests.policy.extras` writes the second column anew; the others are written by hand.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.policy.source import ROOT

PAGE = ROOT / "docs" / "how-to" / "install.md"
WITHOUT = "(none)"
_ROW = re.compile(r"^\| (`[\w-]+`|\(none\)) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([^\]]*)\])?(?:>=([\w.]+))?(.*)")


def read_project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def brought(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the cell of each extra: its requirements, and other extras by their names."""
    extras = {f"`{name}`": needs for name, needs in project["optional-dependencies"].items()}
    all_needs = {WITHOUT: project["dependencies"], **extras}
    return {name: _cell(needs, own=project["name"]) for name, needs in all_needs.items()}


def _cell(requirements: Sequence[str], *, own: str) -> str:
    parts = []
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement)
        assert found is not None, requirement
        name, extras, oldest, condition = found.groups()
        if name == own:
            parts += [f"`{extra}`" for extra in extras.split(",")]
        elif "platform_machine !=" not in condition:
            parts.append(f"{name} ≥ {oldest}" if oldest else name)
    return ", ".join(parts)


def shown(page: str) -> dict[str, str]:
    """Return the cell that the page has for each extra."""
    return {name: cell for name, cell, _ in _ROW.findall(page)}


def write_page() -> None:
    """Write the cells into the page; an extra that it lacks gets no row."""
    cells = brought(read_project())
    page = PAGE.read_text()
    PAGE.write_text(_ROW.sub(lambda m: f"| {m[1]} | {cells.get(m[1], m[2])} | {m[3]} |", page))


if __name__ == "__main__":
    write_page()
