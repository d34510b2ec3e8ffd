"""A reader of numpy's .npz files that a small file cannot make fill the memory."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from savedmodel.files.model_folder import locate
from xla_call_module.errors import FormatError

# How much larger than its file what is compressed may be.
_MAX_EXPANSION = 1 << 30
# What zipfile and numpy raise of files that are none of theirs, or damaged.
NPZ_ERRORS = (
    AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OverflowError,
    RuntimeError, TypeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Return a context with the arrays of a file by name; each is read when it is asked for."""
    folder, name = locate(path)
    with folder.open(name) as file:
        size = os.fstat(file.fileno()).st_size
        # numpy reads a single array or a pickle under this name, too.
        with zipfile.ZipFile(file) as archive:
            expanded = sum(member.file_size for member in archive.infolist())
        if expanded > size + _MAX_EXPANSION:
            raise FormatError(
                f"{path} unpacks from {size:,} bytes to {expanded:,}. To do: write it with "
                "numpy.savez, which does not compress."
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as entries:
            yield entries
