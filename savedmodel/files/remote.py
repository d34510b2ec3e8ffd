"""Folders in an object store, through etils where it is installed.

A store has no renaming in one step, so the order of the files is what keeps a reader from half a
model: an old saved_model.pb goes first, the new one comes last.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from xla_call_module.errors import ArgumentError, MissingDependencyError, StructureError

_PIECE_BYTES = 8 << 20
_LOCAL = "file://"
_DRIVE = re.compile(r"[A-Za-z]:\\")


def parse_path(path: object) -> str:
    """Return a path as text, on a disk or an address; `file:///models/m` is `/models/m`.

    Example:
        >>> parse_path("file:///models/m"), parse_path("gs://bucket/m")
        ('/models/m', 'gs://bucket/m')
    """
    if not isinstance(path, (str, os.PathLike)):
        shown = getattr(path, "__name__", "") or f"a {type(path).__name__}"
        raise ArgumentError(
            f"Expected a path, got {shown}. To do: pass what is written first and the path after "
            "it, as in bridge.save(predict, 'model')."
        )
    text = os.fspath(path)
    if _DRIVE.match(text):
        raise StructureError(
            f"{text} is a path of Windows, and would be the name of a file here. To do: write it "
            "as this system sees it, such as /mnt/c/models under WSL, or with slashes."
        )
    return text.removeprefix(_LOCAL)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address such as `gs://bucket/model`."""
    return "://" in os.fspath(path)


def upload(folder: Path, path: str | os.PathLike[str], *, last: str, overwrite: bool) -> None:
    """Copy a finished folder to an address."""
    target = address(path)
    if target.exists() and not overwrite:
        raise StructureError(
            f"{os.fspath(path)} exists. To do: pass overwrite=True to replace it, or take another "
            "address."
        )
    (target / last).unlink(missing_ok=True)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: file.name == last):
        place = target / file.relative_to(folder).as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as source, place.open("wb") as destination:
            shutil.copyfileobj(source, destination, _PIECE_BYTES)


def address(path: str | os.PathLike[str]) -> Any:
    """Return an address as an `etils.epath.Path`."""
    try:
        from etils import epath
    except ImportError as error:
        raise MissingDependencyError.of(
            f"The address {os.fspath(path)}", "etils", extra="remote", instead="use a local folder"
        ) from error
    return epath.Path(parse_path(path))
