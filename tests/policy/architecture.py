"""The drawing and the tables of the rooms, made from the imports.

`python -m tests.policy.architecture` prints them; the site has them in `docs/architecture.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from tests.policy.layers import LAYERS, room_imports, room_of
from tests.policy.source import Module, read_modules


def draw_architecture(modules: Collection[Module]) -> str:
    """Return the drawing and the table of the rooms of each package, as Markdown."""
    uses = _uses(modules)
    return "\n".join(
        line for package in LAYERS for line in (*_draw(package, uses), "", *_tell(package, modules))
    )


def _uses(modules: Collection[Module]) -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    uses: dict[str, set[str]] = {}
    for room, target in room_imports(modules):
        uses.setdefault(room, set()).add(target)
    return uses


def _draw(package: str, uses: Mapping[str, set[str]]) -> Iterator[str]:
    """Draw the rooms of one package; what follows from other arrows has none of its own."""
    yield f"### `{package}`\n"
    yield "```mermaid\nflowchart TD"
    for room in sorted(room for layer in LAYERS[package] for room in layer.split()):
        targets = {t for t in uses.get(f"{package}.{room}", ()) if t.startswith(f"{package}.")}
        implied = {below for target in targets for below in _below(target, uses)}
        yield f"  {_node(room)}"
        for target in sorted(targets - implied):
            yield f"  {_node(room)} --> {_node(target.removeprefix(f'{package}.'))}"
    yield "```"


def _node(room: str) -> str:
    # Mermaid keeps some words, such as `call`, for itself.
    return f"r_{room.replace('.', '_')}[{room}]"


def _below(room: str, uses: Mapping[str, set[str]]) -> set[str]:
    """Return every room that one reaches, itself left out."""
    direct = uses.get(room, set())
    return direct | {below for target in direct for below in _below(target, uses)}


def _tell(package: str, modules: Collection[Module]) -> Iterator[str]:
    """Say of each room of a package, from the highest, what it is for."""
    by_name = {module.name: module for module in modules}
    sizes: dict[str, int] = {}
    for name in by_name:
        room = room_of(name, by_name)
        sizes[room] = sizes.get(room, 0) + (not by_name[name].is_package)
    yield "| room | files | what it is for |\n|---|--:|---|"
    for layer in reversed(LAYERS[package]):
        for room in layer.split():
            module = by_name[f"{package}.{room}"]
            purpose = (ast.get_docstring(module.tree) or "").split("\n\n")[0].replace("\n", " ")
            path = f"{package}/{room.replace('.', '/')}{'/' if module.is_package else '.py'}"
            yield f"| `{path}` | {sizes[module.name]} | {purpose.replace('|', '&#124;')} |"
    yield ""


if __name__ == "__main__":
    print(draw_architecture(read_modules()))
