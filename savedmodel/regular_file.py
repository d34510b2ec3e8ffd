"""Files of a SavedModel, opened only where they are files, inside of its folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xla_call_module.errors import FormatError, quote

__all__ = ["check_inside", "read_file"]


def check_inside(folder: Path, name: str, *, links: bool = False) -> Path:
    """The path of a file in a folder.

    Args:
        folder: where the model is; it may be a link itself, as `latest` often is.
        name: the path below it, with slashes.
        links: whether it may be a link to outside of the folder, as in a cache whose folders are
            links to files that are named by their content.

    Raises:
        FormatError: it is absolute, has `..`, is such a link where none may be, or is there and is
            no regular file.
    """
    parts = name.split("/")
    if not name or name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise FormatError(f"{folder} refers to a file {name!r}, which is no path inside of it.")
    path = folder / name
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be a file: {quote(error)}.") from error
    if not stat.S_ISREG(mode):
        raise FormatError(f"{path} is no regular file. To do: copy the folder again.")
    root = os.path.realpath(folder)
    if not links and os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise FormatError(
            f"{path} is a link to {os.path.realpath(path)}, outside of its folder. To do: copy the "
            "folder with what its links point to, such as by cp -rL."
        )
    return path


def read_file(folder: Path, name: str) -> bytes:
    """The content of a file in a folder; it may be a link.

    Raises:
        FormatError: as `check_inside`.
        OSError: it is not there, or cannot be read.
    """
    path = check_inside(folder, name, links=True)
    # What took its place since must not be waited for.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path} is no regular file. To do: copy the folder again.")
        return file.read()
