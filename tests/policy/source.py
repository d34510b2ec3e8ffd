"""The source files that the policies are about, parsed once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bridge", "savedmodel", "xla_call_module")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of the packages."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package at the top of this module."""
        return self.name.partition(".")[0]

    @property
    def is_package(self) -> bool:
        """Return whether this is the `__init__.py` of a folder."""
        return self.path.name == "__init__.py"

    def at(self, node: ast.AST) -> str:
        """Return where a node is, in the way that editors open it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones included."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def parse_module(name: str, path: Path, text: str) -> Module:
    """A module from its text."""
    return Module(name, path, text, ast.parse(text, filename=str(path)))


@functools.cache
def read_modules() -> tuple[Module, ...]:
    """Return every module of the packages, in the order of their names."""
    return _modules_under(ROOT)


def _modules_under(root: Path) -> tuple[Module, ...]:
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return tuple(
        parse_module(module_name(path.relative_to(root)), path.relative_to(root), path.read_text())
        for path in paths
    )


def module_name(path: Path) -> str:
    """The dotted name of a file, given relative to the folder that Python imports from."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def write_tree(root: Path, files: Mapping[str, str]) -> tuple[Module, ...]:
    """Made-up packages on disk, with the `__init__.py` files that are not given, read back."""
    for package in PACKAGES:
        (root / package).mkdir(exist_ok=True)
        (root / package / "__init__.py").touch()
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return _modules_under(root)


def own_files(root: Path = ROOT) -> Iterator[Path]:
    """Every file under a folder that its `.gitignore` does not name, sorted.

    Git itself is not asked: the policies also hold in an unpacked archive.
    """
    lines = (root / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.strip("/") for line in lines if line and not line.startswith("#"))]
    for path in sorted(root.iterdir()):
        yield from _files_below(path, ignored)


def _files_below(path: Path, ignored: list[str]) -> Iterator[Path]:
    if any(fnmatch(path.name, pattern) for pattern in ignored):
        return
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            yield from _files_below(child, ignored)
    elif path.is_file():
        yield path
