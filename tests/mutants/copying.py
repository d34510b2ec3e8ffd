"""A copy of the tree with an environment that imports the copy, and not the original."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.policy.source import ROOT, own_files

_ENVIRONMENT = ".venv"  # as the Makefile has it
# What names the tree in an environment: its programs, and what an editable installation finds.
_NAMING = ("pyvenv.cfg", "bin/*", "__editable__*.p*")
_STAMP = ".installed-"  # its time says that the environment is made


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tree as it is now, changes that are in no commit included.

    It lies in `build`, which nothing looks into.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=ROOT / "build") as folder:
        copy = Path(folder)
        for path in own_files():
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        _link_environment(Path(sys.prefix), copy)
        yield copy


def _link_environment(environment: Path, copy: Path) -> None:
    """Give the copy an environment of links, but for the files that name the tree."""
    target = copy / _ENVIRONMENT
    packages = Path(sysconfig.get_path("purelib")).relative_to(environment)
    folders = {Path("bin"), packages, *packages.parents}
    names = {str(environment): str(target), str(ROOT): str(copy)}
    for folder in sorted(folders):
        (target / folder).mkdir()
        for path in (environment / folder).iterdir():
            place = path.relative_to(environment)
            if place in folders:
                continue
            if path.is_symlink():
                (target / place).symlink_to(path.readlink())
            elif any(place.match(pattern) for pattern in _NAMING):
                _copy_renamed(path, target / place, names)
            elif path.name.startswith(_STAMP):
                shutil.copy2(path, target / place)
            else:
                (target / place).symlink_to(path)


def _copy_renamed(path: Path, target: Path, names: dict[str, str]) -> None:
    """Copy a file with other names of folders in it, or as it is if it is no text."""
    shutil.copy2(path, target)
    data = path.read_bytes()
    if b"\0" not in data:
        # In one pass, since the new names have the old ones in them.
        old = re.compile(b"|".join(re.escape(name.encode()) for name in names))
        target.write_bytes(old.sub(lambda match: names[match[0].decode()].encode(), data))
