"""Bound the memory needed to parse a message, from its wire format and before it is parsed.

Two bytes are an empty message, and a message is a hundred bytes when it is parsed. So a small file
can fill the memory, and a parser does not stop. https://protobuf.dev/programming-guides/encoding/
has the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from savedmodel.protos.schema import Proto, SavedModel
from xla_call_module.errors import FormatError

MAX_VARINT_BYTES = 10

# What is smaller cannot fill 100 MB.
_HARMLESS_SIZE = 1 << 20
# A message with its place in its parent; a map's entry has a table around it.
_MESSAGE_COST = 100
_MAP_COST = 300
_PACKED_COST = 16
# Graphs that TensorFlow writes take five to ten times their size.
_ALLOWED_COST = 90 << 20
_ALLOWED_RATIO = 12
# A function with gradients has up to 250 of them for each argument and result, and may have as many
# as its description holds, some 40,000. They are walked through in seconds.
_MAX_FIELDS = 10_000_000
MAX_MESSAGE_DEPTH = 100  # protobuf's own limit
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# The low three bits of a tag are its wire type.
_OTHER_TAGS = bytes(byte for byte in range(256) if byte & 7 != _BYTES)
_UNKNOWN = (0, 0, None)
_TOO_LONG = "a field is longer than what it is in"
_TOO_DEEP = f"messages are nested over {MAX_MESSAGE_DEPTH} deep"
_FILLED = "its bytes fill the memory"


def encode_varint(value: int) -> bytes:
    """Return a number as bytes of seven bits, the lowest first; the last lacks the top bit."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends."""
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("a number of more than ten bytes")


def check_wire(file: Path, data: bytes, message: type[Proto] = SavedModel) -> None:
    """Refuse a message that is much larger in memory than in its file."""
    if len(data) <= _HARMLESS_SIZE or _greatest_cost(data) <= _allowed_cost(data):
        return
    try:
        _Scan(file, data).run(message.DESCRIPTOR)
    except IndexError as error:
        raise FormatError(
            f"{file} has no {message.DESCRIPTOR.name} message: it ends within a field. To do: copy "
            "it again."
        ) from error


def _greatest_cost(data: bytes) -> int:
    """Return the cost if each byte that can be the tag of a message were that of a map's entry."""
    return _MAP_COST * len(data.translate(None, _OTHER_TAGS)) + _PACKED_COST * len(data)


def _allowed_cost(data: bytes) -> int:
    return _ALLOWED_COST + _ALLOWED_RATIO * len(data)


# What a length-delimited field of each tag costs: for itself, for each byte, and what is in it.
_Fields = dict[int, tuple[int, int, "_Fields | None"]]


class _Scan:
    """One walk through all fields that are messages, which steps over the content of others."""

    __slots__ = ("_data", "_file", "_known")

    def __init__(self, file: Path, data: bytes) -> None:
        self._file = file
        self._data = data
        self._known: dict[str, _Fields] = {}

    def run(self, message: Any) -> None:
        """Walk through everything, a message before what follows it.

        It is most of what reading a large file takes, so a field is read in place.
        """
        data, total = self._data, 0
        allowed = _allowed_cost(data)
        outer: list[tuple[_Fields, int, int]] = []
        fields, position, end = self._fields_of(message), 0, len(data)
        for _ in range(_MAX_FIELDS):
            while position == end:
                if not outer:
                    return
                fields, position, end = outer.pop()
            start = position
            tag = data[position]
            position += 1
            if tag > 0x7F:
                tag, position = decode_varint(data, start)
            if tag & 7 != _BYTES:
                position = self._skip(tag & 7, position, end)
                continue
            size = data[position]
            position += 1
            if size > 0x7F:
                size, position = decode_varint(data, position - 1)
            after = position + size
            if after > end:
                raise self._refuse(position, _TOO_LONG)
            each, per_byte, inner = fields.get(tag, _UNKNOWN)
            total += each + per_byte * size
            if total > allowed or len(outer) > MAX_MESSAGE_DEPTH:
                raise self._refuse(position, _FILLED if total > allowed else _TOO_DEEP)
            if inner is None or not size:
                position = after
                continue
            outer.append((fields, after, end))
            fields, end = inner, after
        raise self._refuse(position, f"it has more than {_MAX_FIELDS:,} fields")

    def _skip(self, kind: int, position: int, end: int) -> int:
        """Return the end of a field of another kind, of which nothing is in memory but a number."""
        after = position
        if kind == _VARINT:
            while self._data[after] > 0x7F:
                after += 1
            after += 1
        elif kind in (_FIXED64, _FIXED32):
            after += 8 if kind == _FIXED64 else 4
        else:
            raise self._refuse(position, f"it has a field of wire type {kind}")
        if after > end:
            raise self._refuse(position, _TOO_LONG)
        return after

    def _fields_of(self, descriptor: Any) -> _Fields:
        """Return the cost of each field of a message; one in itself is the same dict again."""
        if (known := self._known.get(descriptor.full_name)) is not None:
            return known
        fields = self._known[descriptor.full_name] = {}
        for field in descriptor.fields:
            fields[field.number << 3 | _BYTES] = self._cost_of(field)
        return fields

    def _cost_of(self, field: FieldDescriptor) -> tuple[int, int, _Fields | None]:
        inner = field.message_type
        if inner is not None:
            cost = _MAP_COST if inner.GetOptions().map_entry else _MESSAGE_COST
            return cost, 0, self._fields_of(inner)
        is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        return 0, 1 if is_text else _PACKED_COST, None

    def _refuse(self, position: int, flaw: str) -> FormatError:
        return FormatError(
            f"{self._file}, byte {position}: {flaw}. The file is damaged, or made to do harm. To "
            "do: write it again."
        )
