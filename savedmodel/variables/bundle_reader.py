"""The tensors of a bundle, read; every byte is checked against its checksum."""

from __future__ import annotations

import collections
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

import google_crc32c
import numpy as np
import numpy.typing as npt

from savedmodel.files.sstable import Cursor, damage, unmask_crc
from savedmodel.variables.data_files import align, aligned_empty
from savedmodel.variables.piece_checksums import PIECE_SIZE
from savedmodel.variables.tensor_bundle import (
    BOOL,
    LENGTHS_CRC_SIZE,
    STRING,
    BundleEntry,
    BundleIndex,
    check_bounds,
    encode_lengths,
    find_tensor,
    find_tensor_or_strings,
)
from savedmodel.variables.tensor_slices import (
    Slice,
    extents,
    flaw_of_slices,
    shape_of_slice,
    show_key,
    slice_key,
)
from xla_call_module.errors import DtypeError, FormatError, StructureError

_Bytes = npt.NDArray[np.uint8]


def read_tensor(index: BundleIndex, key: str) -> _Bytes:
    """Return the bytes of a tensor, in a new array; `view` and `reshape` make the tensor of them.

    A tensor that is stored in slices is put together.
    """
    entry, _ = find_tensor(index, key)
    if entry.slices:
        return _assemble_slices(index, key)
    check_bounds(index, entry)
    data = aligned_empty(entry.size)
    pieces = (data[start : start + PIECE_SIZE] for start in range(0, data.size, PIECE_SIZE))
    collections.deque(_read_pieces(index, key, pieces), maxlen=0)
    return data


def stream_tensor(index: BundleIndex, key: str) -> Iterator[_Bytes]:
    """Yield the bytes of a tensor in pieces of a few megabytes, which the caller may keep.

    Whether they are those that were written shows after the last one. A tensor that is stored in
    slices comes in one piece.
    """
    entry, _ = find_tensor(index, key)
    if entry.slices:
        yield read_tensor(index, key)
        return
    check_bounds(index, entry)
    sizes = (min(PIECE_SIZE, entry.size - i) for i in range(0, entry.size, PIECE_SIZE))
    yield from _read_pieces(index, key, (np.empty(size, np.uint8) for size in sizes))


def _read_pieces(index: BundleIndex, key: str, pieces: Iterable[_Bytes]) -> Iterator[_Bytes]:
    """Fill arrays with the bytes of a tensor that is in one place, and then check them."""
    entry = index.entries[key]
    crc, largest, offset = 0, 0, entry.offset
    for piece in pieces:
        index.files.read(entry.shard_id, offset, piece)
        crc = google_crc32c.extend(crc, piece)
        largest = max(largest, int(piece.max())) if entry.dtype == BOOL else 0
        offset += piece.nbytes
        yield piece
    _check_crc(index, key, crc)
    _check_bool(index, key, largest)


class SharedTensor:
    """The bytes of one tensor, read-only; all who hold what a call gives have the same array."""

    __slots__ = ("_buffer", "_index", "_key", "_lock")

    def __init__(self, index: BundleIndex, key: str) -> None:
        """Read nothing yet."""
        entry, _ = find_tensor(index, key)
        if not entry.slices:
            check_bounds(index, entry)
        self._index = index
        self._key = key
        self._lock = threading.Lock()
        # What owns the memory: every array that is made of it refers to that.
        self._buffer: Callable[[], _Bytes | None] = lambda: None

    def __call__(self) -> _Bytes:
        """Return the bytes, read again where nobody holds them any more."""
        with self._lock:
            buffer = self._buffer()
            data = read_tensor(self._index, self._key) if buffer is None else align(buffer)
            data.flags.writeable = False
            assert data.base is not None
            self._buffer = weakref.ref(data.base)
            return data


def _assemble_slices(index: BundleIndex, key: str) -> _Bytes:
    """Return the bytes of a tensor that is stored in slices, in a new array."""
    entry, dtype = find_tensor(index, key)
    check_slices(index, key)
    data = aligned_empty(math.prod(entry.shape) * dtype.itemsize)
    whole = data.view(f"V{dtype.itemsize}").reshape(entry.shape)
    for part in entry.slices:
        data_of_part = read_tensor(index, slice_key(key, part)).view(whole.dtype)
        whole[extents(part, entry.shape)] = data_of_part.reshape(shape_of_slice(part, entry.shape))
    return data


def check_slices(index: BundleIndex, key: str) -> None:
    """Refuse a tensor whose slices are not all there, or are not what it is made of."""
    entry = index.entries[key]
    if flaw := flaw_of_slices(entry.slices, entry.shape):
        raise FormatError(f"{index.path}: the tensor {key!r} has {flaw}. To do: write it again.")
    for part in entry.slices:
        _check_slice(index, key, part, index.entries.get(slice_key(key, part)))


def _check_slice(index: BundleIndex, key: str, part: Slice, entry: BundleEntry | None) -> None:
    """Refuse a slice before memory is set aside for the whole."""
    whole = index.entries[key]
    shape = shape_of_slice(part, whole.shape)
    if entry is None or entry.slices or (entry.dtype, entry.shape) != (whole.dtype, shape):
        stored = "none" if entry is None else f"dtype {entry.dtype}, shape {entry.shape}"
        raise FormatError(
            f"{index.path}: the slice {part} of {key!r} should have an entry of dtype "
            f"{whole.dtype}, shape {shape}; found {stored}. To do: write it again."
        )
    check_bounds(index, entry)


def read_strings(index: BundleIndex, key: str) -> tuple[bytes, ...]:
    """Return the elements of a tensor of strings, in C order."""
    entry = find_tensor_or_strings(index, key)
    if entry.slices:
        raise StructureError(
            f"{index.path} has the strings {key!r} in {len(entry.slices)} slices, which is not "
            "supported. To do: load the checkpoint in TensorFlow and save it unpartitioned."
        )
    if entry.dtype != STRING:
        raise DtypeError(f"Tensor {key} of {index.path} holds no strings. To do: use read_tensor.")
    if not entry.size:
        return ()
    check_bounds(index, entry)
    buffer = np.empty(entry.size, np.uint8)
    index.files.read(entry.shard_id, entry.offset, buffer)
    path = index.files.path(entry.shard_id)
    cursor = Cursor(path, buffer.tobytes(), origin=entry.offset)
    lengths = [cursor.read_varint() for _ in range(math.prod(entry.shape))]
    crc = google_crc32c.value(encode_lengths(lengths))
    checksum = cursor.take(LENGTHS_CRC_SIZE)
    if unmask_crc(int.from_bytes(checksum, "little")) != crc:
        raise cursor.damage(f"the checksum of the lengths of {key!r} is {crc:#010x}, not as stored")
    values = tuple(cursor.take(length) for length in lengths)
    if cursor.remaining:
        raise cursor.damage(f"{cursor.remaining} bytes follow the last string of {key!r}")
    _check_crc(index, key, google_crc32c.extend(crc, checksum + b"".join(values)))
    return values


def _check_crc(index: BundleIndex, key: str, computed: int) -> None:
    entry = index.entries[key]
    if computed != entry.crc32c:
        raise damage(
            index.files.path(entry.shard_id),
            entry.offset,
            f"the checksum of the {entry.size} bytes of {show_key(key)} is {computed:#010x}, "
            f"where {index.path} has {entry.crc32c:#010x}",
        )


def _check_bool(index: BundleIndex, key: str, largest: int) -> None:
    if largest > 1:
        entry = index.entries[key]
        path = index.files.path(entry.shard_id)
        raise damage(path, entry.offset, f"{show_key(key)} is bool, and has a byte {largest}")
