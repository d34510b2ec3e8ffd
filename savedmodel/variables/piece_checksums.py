"""Checksums of the pieces of a large tensor, so that a part of it is checked without the rest.

TensorBundle has one CRC32C for all of a tensor. Entries of large tensors that are written here have
besides it a field that TensorFlow does not declare, and that its parsers step over:

    tag (field 0x1C32C32C, bytes)   size of a piece   CRC32C of each piece
                                    4 bytes           4 bytes each, little-endian

All pieces but the last have that size. The checksums of the pieces give that of the whole, by
which they are checked themselves. TensorFlow writes entries anew, without them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.unknown_fields import UnknownFieldSet

from savedmodel.protos.schema import Proto
from savedmodel.protos.wire_format import encode_varint

PIECE_SIZE = 1 << 22
_SMALLEST_PIECE = 1 << 12
_FIELD = 0x1C32C32C
_LENGTH_DELIMITED = 2
_TAG = encode_varint(_FIELD << 3 | _LENGTH_DELIMITED)
# Castagnoli's polynomial with the bits in reverse, https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4.
# The top bit is that of x^0.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_EIGHT_BITS = 1 << 31 - 8


@dataclass(frozen=True, slots=True)
class PieceChecksums:
    """The checksums of a tensor's pieces.

    Attributes:
        piece: the number of bytes of each piece but the last.
        crcs: the checksum of each piece, not masked.
    """

    piece: int
    crcs: tuple[int, ...]


def pieces_of(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes in pieces of a few megabytes, none of them copied."""
    for start in range(0, data.nbytes, PIECE_SIZE):
        yield data[start : start + PIECE_SIZE]


def encode_pieces(checksums: PieceChecksums | None) -> bytes:
    """Return the bytes that go after the declared fields of an entry.

    >>> encode_pieces(PieceChecksums(1 << 22, (1, 2))).hex()
    'e2b2d88c0e0c000040000100000002000000'
    """
    if checksums is None:
        return b""
    numbers = (checksums.piece, *checksums.crcs)
    value = struct.pack(f"<{len(numbers)}I", *numbers)
    return _TAG + encode_varint(len(value)) + value


def decode_pieces(entry: Proto, data: bytes) -> PieceChecksums | None:
    """Return the checksums of the pieces of an entry; None without any."""
    if _TAG not in data:
        return None
    unknown: Any = UnknownFieldSet(entry)  # a sequence, and its stub does not say so
    for field in unknown:
        if (field.field_number, field.wire_type) == (_FIELD, _LENGTH_DELIMITED):
            if not field.data or len(field.data) % 4:
                raise ValueError(f"{len(field.data)} bytes of checksums of pieces")
            piece, *crcs = struct.unpack(f"<{len(field.data) // 4}I", field.data)
            return PieceChecksums(piece, tuple(crcs))
    return None


def flaw_of_pieces(checksums: PieceChecksums, size: int) -> str:
    """Return why they cannot be those of a tensor of so many bytes; or nothing."""
    if checksums.piece < _SMALLEST_PIECE:
        return f"checksums of pieces of {checksums.piece} bytes"
    if len(checksums.crcs) != -(-size // checksums.piece):
        return (
            f"checksums of {len(checksums.crcs)} pieces of {checksums.piece} bytes, and {size} "
            "bytes in all"
        )
    return ""


def whole_checksum(checksums: PieceChecksums, size: int) -> int:
    """Return the CRC32C of all of a tensor, made of those of its pieces.

    >>> import google_crc32c
    >>> crcs = google_crc32c.value(b"12345"), google_crc32c.value(b"6789")
    >>> hex(whole_checksum(PieceChecksums(5, crcs), 9))
    '0xe3069283'
    """
    crc = 0
    for number, piece_crc in enumerate(checksums.crcs):
        length = min(checksums.piece, size - number * checksums.piece)
        crc = _times(_power(length), crc) ^ piece_crc
    return crc


@cache
def _power(size: int) -> int:
    """Return the factor of a checksum for bytes that follow: x to the number of their bits."""
    power, square = _ONE, _EIGHT_BITS
    while size:
        if size & 1:
            power = _times(power, square)
        square = _times(square, square)
        size >>= 1
    return power


def _times(left: int, right: int) -> int:
    """Return the product of two polynomials, modulo Castagnoli's."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
