"""The faults of `faults.toml`, and what is wrong with it."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.policy.source import PACKAGES

FAULTS = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong change of one file.

    Attributes:
        room: the folder of the file.
        name: what goes wrong, in a few words with hyphens.
        file: the path of the file in the tree.
        text: a text that is in the file once.
        replacement: the text in its place.
    """

    room: str
    name: str
    file: str
    text: str
    replacement: str

    def apply(self, root: Path) -> None:
        """Change the file in a tree."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.text, self.replacement))


def read_faults(path: Path = FAULTS) -> tuple[Fault, ...]:
    """Return the faults of a file, in its order."""
    return tuple(
        Fault(room, entry["name"], f"{room}/{entry['file']}", entry["text"], entry["replacement"])
        for room, entries in tomllib.loads(path.read_text()).items()
        for entry in entries
    )


def flaws(faults: Sequence[Fault], root: Path) -> list[str]:
    """Return why faults cannot be applied to a tree, or be told apart."""
    names = Counter(fault.name for fault in faults)
    twice = [f"{name} is the name of {count} faults" for name, count in names.items() if count > 1]
    return [*(f"{f.name}: {flaw}" for f in faults if (flaw := _flaw(f, root))), *twice]


def _flaw(fault: Fault, root: Path) -> str:
    path = root / fault.file
    count = path.read_text().count(fault.text) if path.is_file() else 0
    if count != 1:
        return f"its text is in {fault.file} {count} times, and not once"
    return "it changes nothing" if fault.text == fault.replacement else ""


def rooms_without(faults: Sequence[Fault], root: Path) -> list[str]:
    """Return the folders of the packages that have no fault, and modules besides their own page."""
    pages = [page for package in PACKAGES for page in (root / package).rglob("__init__.py")]
    rooms = {
        str(page.parent.relative_to(root))
        for page in pages
        if any(file != page for file in page.parent.glob("*.py"))
    }
    return sorted(rooms - {fault.room for fault in faults})
