"""Parts of variables, read from their file without the rest.

Only the pieces and slices that a part meets are read, and each is checked when it is first needed.
A tensor that another program stored as a whole has one checksum, so its first part reads all of it;
no more than a few megabytes are in memory at a time.
"""

from __future__ import annotations

import threading
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from savedmodel.files.sstable import damage
from savedmodel.variables.bundle_reader import check_slices
from savedmodel.variables.extents import (
    Extent,
    boxes_of,
    common_extent,
    slices_of,
    span_of,
    strides_of,
    within,
)
from savedmodel.variables.piece_checksums import PIECE_SIZE, PieceChecksums, whole_checksum
from savedmodel.variables.tensor_bundle import (
    BOOL,
    BundleEntry,
    BundleIndex,
    check_bounds,
    find_tensor,
)
from savedmodel.variables.tensor_slices import Slice, extents, show_key, slice_key
from xla_call_module.errors import FormatError

_Bytes = npt.NDArray[np.uint8]
# A file that another program is writing to does not stay as it is when it is read again.
_ATTEMPTS = 3


class TensorParts:
    """One tensor of a bundle; calling it with an extent gives the bytes of that part."""

    __slots__ = ("_index", "_key", "_lock", "_slices", "_whole")

    def __init__(self, index: BundleIndex, key: str) -> None:
        """Read nothing yet."""
        self._index = index
        self._key = key
        self._lock = threading.Lock()
        self._slices: dict[Slice, TensorParts] | None = None
        self._whole: _CheckedTensor | None = None

    def __call__(self, extent: Extent) -> npt.NDArray[Any]:
        """Return the bytes of a part in C order, in a new array with one dimension."""
        _, dtype = find_tensor(self._index, self._key)
        part = np.empty([stop - start for start, stop in extent], f"V{dtype.itemsize}")
        if part.size:
            self._copy(extent, part)
        return part.reshape(-1).view(np.uint8)

    def _copy(self, extent: Extent, out: npt.NDArray[Any]) -> None:
        entry, _ = find_tensor(self._index, self._key)
        if not entry.slices:
            with self._lock:
                if self._whole is None:
                    self._whole = _CheckedTensor(self._index, self._key, entry)
            self._whole.copy(extent, out)
            return
        with self._lock:
            if self._slices is None:
                check_slices(self._index, self._key)
                self._slices = {
                    part: TensorParts(self._index, slice_key(self._key, part))
                    for part in entry.slices
                }
        for part, tensor in self._slices.items():
            bounds = tuple((s.start, s.stop) for s in extents(part, entry.shape))
            if common := common_extent(extent, bounds):
                tensor._copy(within(common, bounds), out[slices_of(within(common, extent))])


class _CheckedTensor:
    """A tensor that is in one place, each of its pieces checked once, when it is needed."""

    __slots__ = ("_checked", "_dtype", "_entry", "_index", "_key", "_lock", "_pieces", "_stamp")

    def __init__(self, index: BundleIndex, key: str, entry: BundleEntry) -> None:
        _, dtype = find_tensor(index, key)
        check_bounds(index, entry)
        self._index = index
        self._key = key
        self._entry = entry
        self._dtype = np.dtype(f"V{dtype.itemsize}")
        self._pieces = entry.pieces or PieceChecksums(max(1, entry.size), (entry.crc32c,))
        self._checked: set[int] = set()
        self._stamp: tuple[int, int] | None = None
        self._lock = threading.Lock()
        if whole_checksum(self._pieces, entry.size) != entry.crc32c:
            raise FormatError(
                f"{index.path}: the checksums of the pieces of {show_key(key)} are not "
                "those of the whole. The file is damaged. To do: copy it again, or write it again."
            )

    def copy(self, extent: Extent, out: npt.NDArray[Any]) -> None:
        """Copy a part, a few megabytes at a time, out of pieces that are checked."""
        strides = strides_of(self._entry.shape, self._dtype.itemsize)
        for box in boxes_of(extent, strides):
            start, stop = span_of(box, strides, self._dtype.itemsize)
            data = self._read(start, stop)
            sizes = [end - begin for begin, end in box]
            stored: npt.NDArray[Any] = np.ndarray(sizes, self._dtype, data, strides=strides)
            out[slices_of(within(box, extent))] = stored

    def _read(self, start: int, stop: int) -> _Bytes:
        """Return these bytes, of a file that nobody has written to since they were checked."""
        data = np.empty(stop - start, np.uint8)
        with self._lock:
            for _ in range(_ATTEMPTS):
                stamp = self._index.files.stamp(self._entry.shard_id)
                if stamp != self._stamp:
                    self._checked.clear()
                    self._stamp = stamp
                self._check(start, stop)
                self._index.files.read(self._entry.shard_id, self._entry.offset + start, data)
                if self._index.files.stamp(self._entry.shard_id) == stamp:
                    return data
        path = self._index.files.path(self._entry.shard_id)
        raise damage(path, self._entry.offset + start, "the file is written to while it is read")

    def _check(self, start: int, stop: int) -> None:
        """Refuse the pieces that have these bytes if they are not those that were written."""
        size = self._pieces.piece
        for number in range(start // size, -(-stop // size)):
            if number not in self._checked:
                self._check_piece(number)
                self._checked.add(number)

    def _check_piece(self, number: int) -> None:
        start = number * self._pieces.piece
        stop = min(start + self._pieces.piece, self._entry.size)
        shard_id, offset = self._entry.shard_id, self._entry.offset
        crc, largest = 0, 0
        for position in range(start, stop, PIECE_SIZE):
            data = np.empty(min(PIECE_SIZE, stop - position), np.uint8)
            self._index.files.read(shard_id, offset + position, data)
            crc = google_crc32c.extend(crc, data)
            if self._entry.dtype == BOOL:
                largest = max(largest, int(data.max()))
        path = self._index.files.path(shard_id)
        if crc != (stored := self._pieces.crcs[number]):
            raise damage(
                path,
                offset + start,
                f"the checksum of the {stop - start} bytes from {start} on of "
                f"{show_key(self._key)} is {crc:#010x}, where {self._index.path} has "
                f"{stored:#010x}",
            )
        if largest > 1:
            flaw = f"{show_key(self._key)} is bool, and has a byte {largest}"
            raise damage(path, offset + start, flaw)
