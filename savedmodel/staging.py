"""A place to put a SavedModel together, which appears under its own name when it is whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from savedmodel.folder import new_folder
from savedmodel.remote import is_remote, upload
from savedmodel.write import PROTO_FILE

__all__ = ["staged_folder"]

_INNER = ".model"


@contextmanager
def staged_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """A path where a SavedModel is written, and given more files; then it appears at `path`.

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
            inner = Path(temporary) / _INNER
            yield inner
            upload(inner, path, last=PROTO_FILE, overwrite=overwrite)
        return
    with new_folder(Path(path), overwrite=overwrite) as folder:
        inner = folder / _INNER
        yield inner
        for entry in sorted(inner.iterdir()):
            entry.rename(folder / entry.name)
        inner.rmdir()
