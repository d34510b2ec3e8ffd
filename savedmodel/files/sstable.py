"""Sorted tables of byte strings: the SSTables of LevelDB, as TensorFlow writes checkpoint indexes.

- A block holds records in the order of their keys. A record is three varints (bytes shared with
  the key before, bytes of the key that follow, bytes of the value), the rest of the key, and the
  value. After the records come the offsets of those whose keys stand in full, one in 16, and the
  number of these offsets.
- After each block come a byte, 0 for no compression, and a masked CRC32C of block and byte.
- After the data blocks come a metaindex block, which is empty here, and an index block: for each
  data block a key not below its last, with its span, which is an offset and a size as varints.
- 48 bytes close the file: the spans of these two, zeros, and a magic number.

Numbers are little-endian. Sources: https://github.com/google/leveldb/blob/main/doc/table_format.md,
and xla/tsl/lib/io/table_builder.cc for what TensorFlow makes of it.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from savedmodel.protos.wire_format import MAX_VARINT_BYTES, decode_varint, encode_varint
from xla_call_module.errors import FormatError

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5
_COMPRESSIONS = {1: "snappy"}  # kSnappyCompression in xla/tsl/lib/io/table_options.h
_RESTART_INTERVAL = 16
_BLOCK_SIZE = 1 << 18  # as in xla/tsl/lib/io/table_options.h, like the interval
_CRC_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True, slots=True)
class Record:
    """One key with its value, and the offset in the file at which a reader found it."""

    key: bytes
    value: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int


def damage(path: Path, offset: int, flaw: str) -> FormatError:
    """Return the error for a file that is not as its format says."""
    return FormatError(
        f"{path}, byte {offset}: {flaw}. The file is damaged or of another format. To do: copy it "
        "again, or write it again."
    )


class Cursor:
    """Reads forward through a part of a file, never beyond its end.

    Args:
        path: the file, for messages.
        data: bytes of that file.
        start: where in the data to begin.
        end: where in the data to stop; all of them by default.
        origin: where in the file the data begin, for messages.
    """

    __slots__ = ("_data", "_origin", "end", "path", "position")

    def __init__(
        self, path: Path, data: bytes, *, start: int = 0, end: int | None = None, origin: int = 0
    ) -> None:
        self._data = data
        self._origin = origin
        self.path = path
        self.position = start
        self.end = len(data) if end is None else end

    @property
    def offset(self) -> int:
        """The offset of the cursor in the file."""
        return self._origin + self.position

    @property
    def remaining(self) -> int:
        """The number of bytes that are left."""
        return self.end - self.position

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > self.remaining:
            raise self.damage(f"{size} bytes are to follow, but {self.remaining} are left")
        self.position += size
        return self._data[self.position - size : self.position]

    def read_varint(self) -> int:
        """Return the next number: seven bits in a byte, the lowest first."""
        piece = self._data[self.position : min(self.end, self.position + MAX_VARINT_BYTES)]
        try:
            value, size = decode_varint(piece, 0)
        except IndexError as error:
            raise self.damage("a number has no end") from error
        if value >= 1 << 64:
            raise self.damage("a number has more than 64 bits")
        if size > 1 and not piece[size - 1]:
            raise self.damage("a number has more bytes than it needs")
        self.position += size
        return value

    def damage(self, flaw: str) -> FormatError:
        """Return the error for a flaw at this place."""
        return damage(self.path, self.offset, flaw)


def encode_table(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the table with these keys and values; the keys ascend."""
    table = bytearray()
    index = []
    for batch in _batches(records):
        block = _encode_block(batch)
        index.append((batch[-1][0], _encode_span(len(table), block)))
        table += block
    footer = b""
    for block in (_encode_block([]), _encode_block(index)):
        footer += _encode_span(len(table), block)
        table += block
    return bytes(table) + footer.ljust(_FOOTER_SIZE - len(_MAGIC), b"\0") + _MAGIC


def _batches(records: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    batch, size = [], 0
    for key, value in records:
        batch.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode_block(records: Sequence[tuple[bytes, bytes]]) -> bytes:
    block = bytearray()
    restarts = []
    last = b""
    for number, (key, value) in enumerate(records):
        shared = 0
        if number % _RESTART_INTERVAL:
            shared = _shared_length(last, key)
        else:
            restarts.append(len(block))
        for size in (shared, len(key) - shared, len(value)):
            block += encode_varint(size)
        block += key[shared:] + value
        last = key
    restarts = restarts or [0]
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    block += b"\0"
    return bytes(block) + struct.pack("<I", mask_crc(google_crc32c.value(bytes(block))))


def _shared_length(one: bytes, other: bytes) -> int:
    for length, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return length
    return min(len(one), len(other))


def _encode_span(start: int, block: bytes) -> bytes:
    return encode_varint(start) + encode_varint(len(block) - _TRAILER_SIZE)


def mask_crc(crc: int) -> int:
    """Return a checksum as files hold it (util/crc32c.h in LevelDB says why)."""
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def unmask_crc(masked: int) -> int:
    """Return the checksum that a file holds masked."""
    rotated = (masked - _CRC_MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def decode_table(path: Path, data: bytes) -> Iterator[Record]:
    """Yield the records of a table, in the order of their keys.

    Blocks must follow each other without a gap, as both known writers have them, and keys must
    ascend: so no byte is read twice, and a reader that searches finds what this one lists.
    """
    metaindex, index = _decode_footer(path, data)
    position, last = 0, None
    for separator in _decode_block(path, data, index):
        cursor = Cursor(path, separator.value, origin=separator.offset)
        span = _decode_span(cursor, limit=metaindex.start)
        if span.start != position:
            raise damage(path, separator.offset, f"a block begins at {span.start}, not {position}")
        for record in _decode_block(path, data, span):
            if last is not None and record.key <= last:
                raise damage(
                    path, record.offset, f"key {_show(record.key)} is not above {_show(last)}"
                )
            yield record
            last = record.key
        if last is None or separator.key < last:
            raise damage(path, separator.offset, f"a block has keys above {_show(separator.key)}")
        position, last = span.end + _TRAILER_SIZE, separator.key
    if position != metaindex.start:
        raise damage(path, position, f"no block, but the metaindex is at {metaindex.start}")
    for record in _decode_block(path, data, metaindex):
        raise damage(path, record.offset, f"the metaindex has an entry {_show(record.key)}")


def _show(key: bytes) -> str:
    return reprlib.repr(key)


def _decode_footer(path: Path, data: bytes) -> tuple[_Span, _Span]:
    start = len(data) - _FOOTER_SIZE
    if start < 0 or not data.endswith(_MAGIC):
        raise damage(path, max(0, len(data) - len(_MAGIC)), "no magic number of an SSTable")
    cursor = Cursor(path, data, start=start, end=len(data) - len(_MAGIC))
    metaindex = _decode_span(cursor, limit=start)
    index = _decode_span(cursor, limit=start)
    if any(cursor.take(cursor.remaining)):
        raise cursor.damage("the footer has bytes that are not zero")
    if (metaindex.end + _TRAILER_SIZE, index.end + _TRAILER_SIZE) != (index.start, start):
        raise damage(path, start, f"the footer has blocks at {metaindex} and {index}")
    return metaindex, index


def _decode_span(cursor: Cursor, *, limit: int) -> _Span:
    start = cursor.read_varint()
    end = start + cursor.read_varint()
    if end + _TRAILER_SIZE > limit:
        raise cursor.damage(f"a block reaches from {start} to {end}, beyond {limit}")
    return _Span(start, end)


def _decode_block(path: Path, data: bytes, span: _Span) -> Iterator[Record]:
    restarts, records_end = _decode_restarts(path, data, span)
    cursor = Cursor(path, data, start=span.start, end=records_end)
    key, in_full, key_bytes = b"", {0}, 0
    while cursor.remaining:
        offset = cursor.position
        shared, rest, value_size = (cursor.read_varint() for _ in range(3))
        if shared > len(key):
            raise cursor.damage(f"a key shares {shared} bytes with one of {len(key)}")
        key = key[:shared] + cursor.take(rest)
        key_bytes += len(key)
        # With an interval of 16, a byte in the file is a byte of at most 16 keys.
        if key_bytes > _RESTART_INTERVAL * (span.end - span.start):
            raise cursor.damage("the keys are far longer than their block")
        yield Record(key, cursor.take(value_size), offset)
        if not shared:
            in_full.add(offset - span.start)
    if restarts[0] != 0 or not in_full.issuperset(restarts):
        raise damage(path, records_end, "a restart point is not at a key that stands in full")


def _decode_restarts(path: Path, data: bytes, span: _Span) -> tuple[tuple[int, ...], int]:
    """Return the restart points of a block, and the end of its records."""
    kind, masked = struct.unpack_from("<BI", data, span.end)
    computed = google_crc32c.value(data[span.start : span.end + 1])
    if (stored := unmask_crc(masked)) != computed:
        flaw = f"a block has the checksum {computed:#010x}, but {stored:#010x} is stored"
        raise damage(path, span.start, flaw)
    if kind:
        raise FormatError(
            f"{path}, byte {span.end}: a block is compressed by {_COMPRESSIONS.get(kind, kind)}, "
            "and only blocks without compression can be read. To do: save it again with TensorFlow."
        )
    if span.end - span.start < 8:
        raise damage(path, span.start, "a block is too short for a restart point")
    (number,) = struct.unpack_from("<I", data, span.end - 4)
    records_end = span.end - 4 - 4 * number
    if not number or records_end < span.start:
        raise damage(path, span.end - 4, f"a block has {number} restart points")
    restarts = struct.unpack_from(f"<{number}I", data, records_end)
    if list(restarts) != sorted(set(restarts)):
        raise damage(path, records_end, "restart points do not ascend")
    return restarts, records_end
