"""The data files of a bundle, each held open from when it is first asked for.

What is open stays when its folder is replaced, or its name removed. Nothing is mapped into memory:
where another program cuts a file short, a read says so, and a mapped page ends the process
(SIGBUS, https://man7.org/linux/man-pages/man2/mmap.2.html); where it writes into the file, mapped
arrays change under who holds them.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from savedmodel.files.model_folder import ModelFolder
from savedmodel.files.sstable import damage

_Bytes = npt.NDArray[np.uint8]
# What JAX takes for its own on a CPU, without a copy.
_ALIGNMENT = 64


def shard_name(prefix: str, shard_id: int, num_shards: int) -> str:
    """Return the name of a data file."""
    return f"{prefix}.data-{shard_id:05}-of-{num_shards:05}"


def align(buffer: _Bytes) -> _Bytes:
    """Return the part of a buffer that JAX need not copy; see `aligned_empty`."""
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + buffer.size - _ALIGNMENT]


def aligned_empty(size: int) -> _Bytes:
    """Return an array of bytes that JAX need not copy; its base is a slightly larger buffer."""
    return align(np.empty(size + _ALIGNMENT, np.uint8))


class DataFiles:
    """Places to read the bytes of tensors from."""

    __slots__ = ("__weakref__", "_descriptors", "_folder", "_lock", "_num_shards", "_prefix")

    def __init__(self, folder: ModelFolder, prefix: str, num_shards: int) -> None:
        """Store where the files are; none is opened yet."""
        self._folder = folder
        self._prefix = prefix
        self._num_shards = num_shards
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._descriptors).atexit = False

    def name(self, shard_id: int) -> str:
        """Return the path of one below the folder."""
        return shard_name(self._prefix, shard_id, self._num_shards)

    def path(self, shard_id: int) -> Path:
        """Return the path of one, for messages."""
        return self._folder.path / self.name(shard_id)

    def stamp(self, shard_id: int) -> tuple[int, int]:
        """Return the size of a file, and when it was last written to."""
        status = os.fstat(self._open(shard_id))
        return status.st_size, status.st_mtime_ns

    def read(self, shard_id: int, offset: int, out: _Bytes) -> None:
        """Read the bytes from an offset on into an array."""
        descriptor = self._open(shard_id)
        rest: Any = out.data
        while rest.nbytes:
            count = os.preadv(descriptor, [rest], offset)
            if not count:
                path = self.path(shard_id)
                raise damage(path, offset, "the file became shorter while it was read")
            rest, offset = rest[count:], offset + count

    def _open(self, shard_id: int) -> int:
        with self._lock:
            if shard_id not in self._descriptors:
                name = self.name(shard_id)
                if self._folder.find(name, links=True) is None:
                    flaw = f"no file is there, but {self._prefix}.index refers to one"
                    raise damage(self.path(shard_id), 0, flaw)
                self._descriptors[shard_id] = self._folder.descriptor(name)
            return self._descriptors[shard_id]


def _close(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
