"""TFRecord files: the records that warm a served model up are in one.

A record is the length of its data as 8 bytes, the masked CRC32C of these 8, the data, and the
masked CRC32C of the data; numbers are little-endian.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from savedmodel.files.model_folder import ModelFolder, locate
from savedmodel.files.sstable import damage, mask_crc, unmask_crc

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_PIECE_SIZE = 1 << 20


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write a TFRecord file; return the number of its records."""
    count = 0
    with open(path, "wb") as file:
        for record in records:
            size = len(record).to_bytes(8, "little")
            file.write(size + _masked(size))
            file.write(record)
            file.write(_masked(record))
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def _masked(data: bytes) -> bytes:
    return _FOOTER.pack(mask_crc(google_crc32c.value(data)))


def record_sizes(
    path: str | os.PathLike[str], *, within: ModelFolder | None = None
) -> Iterator[int]:
    """Yield the number of bytes of each record of a TFRecord file; all checksums are checked.

    No more than a megabyte of it is in memory at a time.
    """
    for pieces in _records(path, within):
        yield sum(map(len, pieces))


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield each record of a TFRecord file."""
    return map(b"".join, _records(path, None))


def _records(path: str | os.PathLike[str], within: ModelFolder | None) -> Iterator[Iterator[bytes]]:
    """Yield the pieces of each record, which are to be taken before the next record is."""
    folder, name = locate(path, within)
    path = folder.path / name
    with folder.open(name) as file:
        end = os.fstat(file.fileno()).st_size
        while (start := file.tell()) < end:
            size = _read_size(path, file, start)
            data_start = start + _HEADER.size
            if size > end - data_start - _FOOTER.size:
                raise damage(path, start, f"a record of {size} bytes reaches beyond byte {end}")
            yield _pieces(path, file, data_start, size)


def _read_size(path: Path, file: BinaryIO, start: int) -> int:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise damage(path, start, "the file ends within the length of a record")
    size, masked = _HEADER.unpack(header)
    if google_crc32c.value(header[:8]) != unmask_crc(masked):
        raise damage(path, start, "the length of a record has another checksum than is stored")
    return int(size)


def _pieces(path: Path, file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """Yield the pieces of a record, and check it."""
    crc, rest = 0, size
    while rest and (piece := file.read(min(rest, _PIECE_SIZE))):
        crc = google_crc32c.extend(crc, piece)
        rest -= len(piece)
        yield piece
    footer = file.read(_FOOTER.size)
    if rest or len(footer) < _FOOTER.size:
        raise damage(path, start, "the file became shorter while it was read")
    if unmask_crc(_FOOTER.unpack(footer)[0]) != crc:
        raise damage(path, start, f"the {size} bytes of a record have another checksum than stored")
