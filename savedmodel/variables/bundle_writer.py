"""Tensors, written as a bundle."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from savedmodel.files.sstable import mask_crc
from savedmodel.protos.wire_format import encode_varint
from savedmodel.variables.bundle_layout import BundleStrings, BundleTensor, DataFile, Layout, Piece
from savedmodel.variables.piece_checksums import (
    PIECE_SIZE,
    PieceChecksums,
    pieces_of,
    whole_checksum,
)
from savedmodel.variables.tensor_bundle import (
    STRING,
    BundleEntry,
    encode_index,
    encode_lengths,
    index_path,
    shard_path,
)
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import StructureError

_Bytes: TypeAlias = npt.NDArray[np.uint8]

MAX_THREADS = 8
_ALIGNMENT = 64  # kAllocatorAlignment in xla/tsl/framework/allocator.h, for who maps the file


def write_data_files(
    prefix: str | os.PathLike[str],
    layout: Layout,
    *,
    holder: int = 0,
    written: Callable[[int], None] | None = None,
) -> dict[str, BundleEntry]:
    """Write the data files of one process in threads; return the entries of the tensors."""
    writer = _Writer(Path(prefix), layout.num_files, written)
    files = [file for file in layout.files if file.holder == holder]
    if len(files) == 1:
        return writer.write(files[0])
    entries: dict[str, BundleEntry] = {}
    with ThreadPoolExecutor(max(1, min(len(files), MAX_THREADS))) as pool:
        try:
            for done in as_completed([pool.submit(writer.write, file) for file in files]):
                entries.update(done.result())
        finally:
            writer.stopped.set()
    return entries


def write_index(
    prefix: str | os.PathLike[str], entries: Mapping[str, BundleEntry], num_shards: int
) -> None:
    """Write the table of contents."""
    with _NewFile(index_path(Path(prefix))) as index:
        index.append(np.frombuffer(encode_index(entries, num_shards), np.uint8))


@dataclass(frozen=True, slots=True)
class _Writer:
    """The writer of a bundle's data files.

    Attributes:
        prefix: the path of the files, up to `.data-…`.
        written: a function of the number of bytes that were just written.
        stopped: the event that is set when a file could not be written, and the others need not be.
    """

    prefix: Path
    num_shards: int
    written: Callable[[int], None] | None
    stopped: threading.Event = field(default_factory=threading.Event)

    def write(self, file: DataFile) -> dict[str, BundleEntry]:
        """Write one data file, and return the entries of its tensors."""
        entries: dict[str, BundleEntry] = {}
        with _NewFile(shard_path(self.prefix, file.shard_id, self.num_shards)) as shard:
            for tensor in file.tensors:
                shard.align()
                if isinstance(tensor, BundleStrings):
                    entry = _write_strings(shard, tensor)
                else:
                    entry = _write_tensor(shard, tensor, self._report)
                entries[tensor.key] = replace(entry, shard_id=file.shard_id)
        return entries

    def _report(self, size: int) -> None:
        if self.stopped.is_set():
            raise InterruptedError("another data file could not be written")
        if self.written is not None:
            self.written(size)


class _NewFile:
    """A file that is written from its beginning, and is on the disk when it is closed."""

    __slots__ = ("_file", "_path", "_submitted", "offset")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._submitted = 0
        self.offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._naming_errors(), self._file:
            if error is None:
                os.fsync(self._file.fileno())

    def append(self, data: _Bytes) -> None:
        """Write all of the bytes, however many the system takes at a time."""
        rest = data.data
        while rest.nbytes:
            with self._naming_errors():
                written = self._file.write(rest)
            rest = rest[written:]
        self.offset += data.nbytes
        if self.offset - self._submitted >= PIECE_SIZE:
            self._start_writeback()

    def align(self) -> None:
        """Write zeros up to where a tensor may begin."""
        self.append(np.zeros(-self.offset % _ALIGNMENT, np.uint8))

    def _start_writeback(self) -> None:
        # Linux begins to write pages out when it hears that they are not needed, and keeps those
        # that it is writing (mm/fadvise.c). The disk then works while we do, and less is left for
        # fsync: 400 MB take two thirds of the time. Where there is no such call, it is not needed.
        if hasattr(os, "posix_fadvise"):
            length = self.offset - self._submitted
            with contextlib.suppress(OSError):
                os.posix_fadvise(
                    self._file.fileno(), self._submitted, length, os.POSIX_FADV_DONTNEED
                )
        self._submitted = self.offset

    @contextlib.contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error


def _write_tensor(
    shard: _NewFile, tensor: BundleTensor, report: Callable[[int], None]
) -> BundleEntry:
    dtype = dtype_from_tensorflow(tensor.dtype, where=f"Tensor {tensor.key}")
    if tensor.chunks is None:
        raise StructureError(f"Tensor {tensor.key} has no value here. To do: give its bytes.")
    start, checksums = shard.offset, _Checksums()
    for chunk in tensor.chunks():
        for piece in pieces_of(_bytes_of(chunk, tensor.key)):
            checksums.extend(piece)
            shard.append(piece)
            report(piece.nbytes)
    size = shard.offset - start
    if size != (expected := math.prod(tensor.shape) * dtype.itemsize):
        raise StructureError(
            f"The chunks of tensor {tensor.key} have {size} bytes in all; {dtype.name} of shape "
            f"{tensor.shape} has {expected}. To do: give its bytes once, and all of them."
        )
    pieces = checksums.pieces()
    crc = whole_checksum(pieces, size)
    return BundleEntry(
        tensor.dtype,
        tensor.shape,
        0,
        start,
        size,
        crc,
        pieces=pieces if size > PIECE_SIZE else None,
    )


class _Checksums:
    """The checksums of what is written, piece by piece, however it comes."""

    __slots__ = ("_crc", "_crcs", "_filled")

    def __init__(self) -> None:
        self._crcs: list[int] = []
        self._crc = 0
        self._filled = 0

    def extend(self, data: _Bytes) -> None:
        """Take in what follows."""
        while data.nbytes:
            part = data[: PIECE_SIZE - self._filled]
            self._crc = google_crc32c.extend(self._crc, part)
            self._filled += part.nbytes
            data = data[part.nbytes :]
            if self._filled == PIECE_SIZE:
                self._close()

    def pieces(self) -> PieceChecksums:
        """Return the checksums of all that came."""
        if self._filled:
            self._close()
        return PieceChecksums(PIECE_SIZE, tuple(self._crcs))

    def _close(self) -> None:
        self._crcs.append(self._crc)
        self._crc = self._filled = 0


def _bytes_of(chunk: Piece, key: str) -> _Bytes:
    """Return the same memory as bytes; the checksum takes an array, and no view with a release."""
    if not isinstance(chunk, np.ndarray):
        chunk = np.asarray(memoryview(chunk))
    if not chunk.flags.c_contiguous or not chunk.dtype.isnative:
        raise StructureError(
            f"A chunk of tensor {key} has strides {chunk.strides} and dtype {chunk.dtype.str}, "
            "where C order and native bytes are needed. To do: np.ascontiguousarray, astype."
        )
    return np.asarray(chunk).reshape(-1).view(np.uint8)


def _write_strings(shard: _NewFile, tensor: BundleStrings) -> BundleEntry:
    if len(tensor.values) != math.prod(tensor.shape):
        raise StructureError(
            f"Tensor {tensor.key} has {len(tensor.values)} strings; shape {tensor.shape} has "
            f"{math.prod(tensor.shape)}. To do: give one string for each element."
        )
    start = shard.offset
    lengths = [len(value) for value in tensor.values]
    crc = google_crc32c.value(encode_lengths(lengths))
    checksum = mask_crc(crc).to_bytes(4, "little")
    crc = google_crc32c.extend(crc, checksum)
    shard.append(np.frombuffer(b"".join(map(encode_varint, lengths)) + checksum, np.uint8))
    for value in tensor.values:
        for piece in pieces_of(np.frombuffer(value, np.uint8)):
            crc = google_crc32c.extend(crc, piece)
            shard.append(piece)
    return BundleEntry(STRING, tensor.shape, 0, start, shard.offset - start, crc)
