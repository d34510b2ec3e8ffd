"""Places to put a SavedModel together, on a disk or for a store; it appears when it is whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from savedmodel.files.folder import PROTO_FILE, new_folder
from savedmodel.files.remote import is_remote, upload

__all__ = ["new_place", "staged_folder"]

_INNER = ".model"


@contextmanager
def new_place(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """An empty folder on a disk, whose content is at `path` when the block ends without an error.

    Args:
        path: the folder to make, or an address as for `savedmodel.write`.
        overwrite: whether a SavedModel that is there is replaced.

    Raises:
        StructureError: something is at `path`, and `overwrite` is off.
        FormatError: what would be replaced is not a SavedModel alone.
        OSError: it cannot be put there; what is there is untouched.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
            upload(Path(temporary), path, last=PROTO_FILE, overwrite=overwrite)
        return
    with new_folder(Path(path), overwrite=overwrite) as folder:
        yield folder


@contextmanager
def staged_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """A path where a SavedModel is written, and given more files; then it appears at `path`.

    Args:
        path: as for `new_place`.
        overwrite: as for `new_place`.

    Raises:
        InteropError, OSError: as `new_place`.
    """
    with new_place(path, overwrite=overwrite) as folder:
        inner = folder / _INNER
        yield inner
        for entry in sorted(inner.iterdir()):
            entry.rename(folder / entry.name)
        inner.rmdir()
