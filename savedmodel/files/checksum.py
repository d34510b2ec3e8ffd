"""The checksum of saved_model.pb, which TensorFlow's format has none of.

It is the first field of the message, one that TensorFlow does not declare:

    tag (field 0x1C32C32C, fixed32)   CRC32C of all bytes that follow   the SavedModel message
    5 bytes                           4 bytes, little-endian

Every protobuf parser accepts it there. What writes the message anew puts the declared fields first
and those it does not know last, or drops them (https://protobuf.dev/programming-guides/encoding/
leaves the order open; the C++, upb, Java and Go libraries do it so). So the place tells an edit
from damage: a checksum at the beginning holds for every byte of the file, and one that is anywhere
else is of the message before the edit, and says nothing. No damage moves a field; a file that lost
its beginning, or has another there, does not begin as a message that was written anew.
"""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np

from savedmodel.protos.wire_format import encode_varint
from xla_call_module.errors import FormatError

_FIELD = 0x1C32C32C
_FIXED32 = 5
_TAG = encode_varint(_FIELD << 3 | _FIXED32)
_CRC_SIZE = 4
HEADER_SIZE = len(_TAG) + _CRC_SIZE
# saved_model_schema_version = 1, then the tag of meta_graphs: how every writer begins.
_BEGINNING = b"\x08\x01\x12"
_PIECE_SIZE = 1 << 23


def header(message: bytes) -> bytes:
    """Return the bytes that go before those of a SavedModel message.

    >>> header(b"").hex()
    'e5b2d88c0e00000000'
    """
    return _TAG + _crc32c(message, 0).to_bytes(_CRC_SIZE, "little")


def check(file: Path, data: bytes) -> bool:
    """Return whether the file begins with a checksum, which then holds."""
    if not data.startswith(_TAG):
        return False
    stored = int.from_bytes(data[len(_TAG) : HEADER_SIZE], "little")
    computed = _crc32c(data, HEADER_SIZE)
    if len(data) < HEADER_SIZE or computed != stored:
        raise FormatError(
            f"{file}, byte {len(_TAG)}: the {max(0, len(data) - HEADER_SIZE)} bytes that follow "
            f"have the checksum {computed:#010x}, where {stored:#010x} is stored. The file is "
            "damaged or cut off. To do: copy it again, or write it again."
        )
    return True


def has_known_beginning(data: bytes) -> bool:
    """Return whether a file without a checksum begins as a message that was written anew does."""
    return data.startswith(_BEGINNING)


def _crc32c(data: bytes, start: int) -> int:
    """Return the checksum of the bytes from `start` on, which are not copied."""
    view = np.frombuffer(data, np.uint8)[start:]
    crc = 0
    for begin in range(0, view.nbytes, _PIECE_SIZE):
        crc = google_crc32c.extend(crc, view[begin : begin + _PIECE_SIZE])
    return int(crc)
