"""What a message takes in memory, from its wire format and before it is parsed.

Two bytes are an empty message, and a message is a hundred bytes when it is parsed. So a small file
can fill the memory, and a parser does not stop. https://protobuf.dev/programming-guides/encoding/
has the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from savedmodel.protos.schema import Proto, SavedModel
from xla_call_module.errors import FormatError

__all__ = ["check_wire"]

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
_MAX_DEPTH = 100  # protobuf's own limit
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_wire(file: Path, data: bytes, message: type[Proto] = SavedModel) -> None:
    """Refuse a message that is much larger in memory than in its file.

    Args:
        file: such as saved_model.pb, for the error.
        data: all of the message.
        message: its class.

    Raises:
        FormatError: it is so, or it is not in the wire format.
    """
    if len(data) <= _HARMLESS_SIZE:
        return
    try:
        _Scan(file, data).run(message.DESCRIPTOR)
    except IndexError as error:
        raise FormatError(
            f"{file} has no {message.DESCRIPTOR.name} message: it ends within a field. To do: copy "
            "it again."
        ) from error


class _Scan:
    """One walk through all fields that are messages, which steps over the content of others."""

    __slots__ = ("_cost", "_data", "_fields", "_file", "_left")

    def __init__(self, file: Path, data: bytes) -> None:
        self._file = file
        self._data = data
        self._fields: dict[Any, dict[int, tuple[int, Descriptor | None]]] = {}
        self._cost = 0
        self._left = _MAX_FIELDS

    def run(self, message: Any) -> None:
        """Walk through everything, a message before what follows it."""
        allowed = _ALLOWED_COST + _ALLOWED_RATIO * len(self._data)
        outer: list[tuple[dict[int, tuple[int, Descriptor | None]], int, int]] = []
        fields, position, end = self._fields_of(message), 0, len(self._data)
        while True:
            while position == end:
                if not outer:
                    return
                fields, position, end = outer.pop()
            number, kind, start, position = self._field(position, end)
            if kind != _BYTES:
                continue
            cost, inner = fields.get(number, (0, None))
            self._cost += cost if inner is not None else cost * (position - start)
            if self._cost > allowed:
                raise self._refuse(start, f"its {len(self._data):,} bytes fill the memory")
            if inner is not None:
                outer.append((fields, position, end))
                fields, position, end = self._fields_of(inner), start, position
                if len(outer) > _MAX_DEPTH:
                    raise self._refuse(start, f"messages are nested over {_MAX_DEPTH} deep")

    def _field(self, position: int, end: int) -> tuple[int, int, int, int]:
        """Number, wire type, start and end of the content of the field at a position."""
        data = self._data
        self._left -= 1
        if self._left < 0:
            raise self._refuse(position, f"it has more than {_MAX_FIELDS:,} fields")
        tag = data[position]
        position += 1
        if tag > 0x7F:
            tag, position = self._varint(position - 1)
        kind = tag & 7
        start = position
        if kind == _BYTES:
            size = data[position]
            position += 1
            if size > 0x7F:
                size, position = self._varint(position - 1)
            start = position
            position += size
        elif kind == _VARINT:
            while data[position] > 0x7F:
                position += 1
            position += 1
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise self._refuse(start, f"it has a field of wire type {kind}")
        if position > end:
            raise self._refuse(start, "a field is longer than what it is in")
        return tag >> 3, kind, start, position

    def _varint(self, position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self._data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value, position
            if shift > 63:
                raise self._refuse(position, "a number has more than 64 bits")

    def _fields_of(self, descriptor: Descriptor) -> dict[int, tuple[int, Descriptor | None]]:
        """For each field number what a field costs, and the message that is in it."""
        if descriptor.full_name not in self._fields:
            self._fields[descriptor.full_name] = {
                field.number: _cost_of(field) for field in descriptor.fields
            }
        return self._fields[descriptor.full_name]

    def _refuse(self, position: int, found: str) -> FormatError:
        return FormatError(
            f"{self._file}, byte {position}: {found}, as in no honest file. It is damaged, or "
            "made to do harm. To do: write it again."
        )


def _cost_of(field: FieldDescriptor) -> tuple[int, Descriptor | None]:
    inner = field.message_type
    if inner is not None:
        return _MAP_COST if inner.GetOptions().map_entry else _MESSAGE_COST, inner
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return 1, None
    return _PACKED_COST, None
