"""The files of a SavedModel's folder, copied to another."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from savedmodel.regular_file import check_inside
from xla_call_module.errors import FormatError

__all__ = ["copy_files"]


def copy_files(
    source: Path, target: Path, *, without: Collection[str] = (), linked: bool = True
) -> None:
    """Give a folder what is in another.

    Args:
        source: the folder of a SavedModel.
        target: a folder that is there, and is empty.
        without: paths below the source that are left out.
        linked: whether a file gets one more name where the file system can, and is copied only
            where it cannot. What is linked must not be changed in place afterwards.

    Raises:
        FormatError: something there is neither file nor folder, or is a link to outside.
        OSError: a file cannot be read or written.
    """
    for path in list(_files(source, without)):
        if (source / path).is_dir():
            (target / path).mkdir()
        elif linked:
            _link_or_copy(source / path, target / path)
        else:
            _copy(source / path, target / path)


def _files(folder: Path, without: Collection[str]) -> Iterator[Path]:
    """The paths below a folder of all that is kept; links to files count as files."""
    for entry in sorted(folder.rglob("*")):
        path = entry.relative_to(folder)
        if str(path) in without:
            continue
        mode = entry.stat().st_mode if entry.exists() else 0
        if entry.is_symlink() and stat.S_ISDIR(mode):
            raise FormatError(f"{entry} is a link to a folder. To do: put the folder there itself.")
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise FormatError(f"{entry} is neither a file nor a folder. To do: remove it.")
        if stat.S_ISREG(mode):
            # What a link leads to elsewhere is no part of the model, and not to be handed on.
            check_inside(folder, path.as_posix())
        yield path


def _link_or_copy(source: Path, target: Path) -> None:
    """One more name for a file, or a copy where there cannot be one."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        # Another file system, one without links, or one that forbids them for others' files.
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
