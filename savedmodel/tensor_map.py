"""Variables that stay in their file: a bundle's data files, mapped into memory.

The system reads a page when it is first touched, and drops it when memory is short. A checksum is
checked when its tensor is first asked for, which is when most of its pages are needed anyway.
"""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from savedmodel.bundle_reader import assemble_slices, check_tensor
from savedmodel.sstable import damage
from savedmodel.tensor_bundle import (
    BundleEntry,
    BundleIndex,
    check_bounds,
    find_tensor,
)
from xla_call_module.errors import FormatError, quote

__all__ = ["MappedTensor", "TensorMap"]

_Bytes = npt.NDArray[np.uint8]


class TensorMap:
    """The data files of a bundle, each mapped once, when the first of its tensors is.

    A map holds on to the file as it is now: it stays good when the folder is replaced by another,
    as `write` does it. Cutting the file short under it is what no program survives.
    """

    __slots__ = ("_files", "_lock", "_maps", "index")

    def __init__(self, index: BundleIndex) -> None:
        """Map nothing yet.

        Args:
            index: what `read_index` gave.
        """
        self.index = index
        self._files: dict[int, _Bytes] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self._lock = threading.Lock()

    def tensor(self, key: str) -> MappedTensor:
        """A tensor that is in its data file, as its entry says.

        Raises:
            DtypeError: it holds strings or another dtype that JAX has not.
            FormatError: the data file is not there, or is too short.
            StructureError: the bundle has no such tensor.
        """
        entry, _ = find_tensor(self.index, key)
        return MappedTensor(self, key, None if entry.slices else self.place(entry))

    def place(self, entry: BundleEntry) -> _Bytes:
        """The bytes that a data file has for an entry, whatever they are."""
        check_bounds(self.index, entry)
        with self._lock:
            if entry.shard_id not in self._files:
                self._files[entry.shard_id] = self._map(entry.shard_id)
            file = self._files[entry.shard_id]
        data = file[entry.offset : entry.offset + entry.size]
        if data.nbytes != entry.size:
            path = self.index.shard_path(entry.shard_id)
            raise damage(path, file.nbytes, "the file ended here when it was mapped")
        return data

    def release(self, entry: BundleEntry, start: int, stop: int) -> None:
        """Let the system take the pages of a tensor's bytes out of the memory of this process.

        They stay good; who touches them again gets them from the file or the system's cache.
        """
        mapped = self._maps.get(entry.shard_id)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            first = (entry.offset + start) // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, first, entry.offset + stop - first)

    def _map(self, shard_id: int) -> _Bytes:
        path = self.index.shard_path(shard_id)
        with open(path, "rb", buffering=0) as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # an empty file
                return np.frombuffer(b"", np.uint8)
            except (OSError, OverflowError) as error:
                raise FormatError(
                    f"{path} cannot be mapped: {quote(error)}. To do: free memory, or copy it "
                    "again."
                ) from error
        self._maps[shard_id] = mapped
        return np.frombuffer(mapped, np.uint8)


class MappedTensor:
    """The bytes of one tensor, read-only; calling it gives them, the first call checks them."""

    __slots__ = ("_checked", "_data", "_key", "_lock", "_map")

    def __init__(self, tensors: TensorMap, key: str, data: _Bytes | None) -> None:
        """Check nothing yet.

        Args:
            tensors: the bundle.
            key: the tensor's.
            data: its bytes in the mapped file; None where it is stored in slices, which the first
                call puts together.
        """
        self._map = tensors
        self._key = key
        self._data = data
        self._checked = False
        self._lock = threading.Lock()

    def __call__(self) -> npt.NDArray[Any]:
        """The bytes.

        Raises:
            FormatError: they are not those that were written.
        """
        with self._lock:
            if self._data is None:
                self._data = assemble_slices(self._map.index, self._key, self._slice)
                self._data.flags.writeable = False
            elif not self._checked:
                check_tensor(self._map.index, self._key, self._data)
            self._checked = True
            return self._data

    def _slice(self, key: str) -> _Bytes:
        entry, _ = find_tensor(self._map.index, key)
        data = self._map.place(entry)
        check_tensor(self._map.index, key, data)
        return data
