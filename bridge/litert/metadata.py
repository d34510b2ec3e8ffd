"""Entries of metadata in a LiteRT model, which any program with the schema of TFLite reads.

A model with another entry is a new root before the bytes of the old model, whose tables it refers
to: nothing of the model is decoded or moved in relation to the rest, so that weights stay aligned.
The layout is that of FlatBuffers (https://flatbuffers.dev/internals/), the fields are those of the
table `Model` (https://github.com/google-ai-edge/LiteRT/blob/main/tflite/converter/schema/schema.fbs).
"""

from __future__ import annotations

import struct

from xla_call_module.errors import FormatError

__all__ = ["add_entry", "is_model", "read_entry"]

_IDENTIFIER = b"TFL3"
_VERSION, _BUFFERS, _METADATA = 0, 4, 6  # fields of Model
_NAME, _BUFFER = 0, 1  # fields of Metadata
_FIELDS = 10
_ALIGNMENT = 16  # of what buffers hold
_MAX_MODEL = (1 << 31) - (1 << 24)  # offsets have 32 bits, and some readers take them for signed


def is_model(content: bytes) -> bool:
    """Return whether bytes begin as a LiteRT model does."""
    return content[4:8] == _IDENTIFIER


def add_entry(model: bytes, name: str, content: bytes) -> bytes:
    """Return a model with one more entry; a model that is too large for it as it is.

    Raises:
        FormatError: it is no model, or a damaged one.
    """
    try:
        root = _Table(model, _u32(model, 0))
        buffers, entries = root.vector(_BUFFERS), root.vector(_METADATA)
        others = {n: root.target(n) for n in range(1, _FIELDS)}
        version = _u32(model, position) if (position := root.place(_VERSION)) else 0
        is_known = root.fields() <= _FIELDS
    except (struct.error, IndexError) as error:
        raise _damaged() from error
    if len(model) + len(content) > _MAX_MODEL or not is_known:
        return model
    # The parts of the new root, each of which refers only to what comes after it.
    table = 8 + 4 + 2 * _FIELDS
    table += -table % 4
    vectors = table + 4 + 4 * _FIELDS
    new_buffers = vectors + 4 + 4 * (len(buffers) + 1)
    entry = new_buffers + 4 + 4 * (len(entries) + 1) + 8  # after its vtable
    buffer = entry + 12 + 8  # the same
    text = buffer + 8
    data = text + 4 + len(name.encode()) + 1
    data += -(data + 4) % _ALIGNMENT
    end = data + 4 + len(content)
    end += -end % _ALIGNMENT
    made = bytearray(end)
    made[:8] = struct.pack("<I", table) + _IDENTIFIER
    places = [4 + 4 * n if n == _VERSION or others.get(n) else 0 for n in range(_FIELDS)]
    places[_BUFFERS], places[_METADATA] = 4 + 4 * _BUFFERS, 4 + 4 * _METADATA
    struct.pack_into(f"<{2 + _FIELDS}H", made, 8, 4 + 2 * _FIELDS, 4 + 4 * _FIELDS, *places)
    struct.pack_into("<iI", made, table, table - 8, version)
    for field, target in others.items():
        _refer(made, table + 4 + 4 * field, end + target if target else 0)
    _refer(made, table + 4 + 4 * _BUFFERS, vectors)
    _refer(made, table + 4 + 4 * _METADATA, new_buffers)
    _write_vector(made, vectors, [*(end + position for position in buffers), buffer])
    _write_vector(made, new_buffers, [*(end + position for position in entries), entry])
    struct.pack_into("<HHHHi", made, entry - 8, 8, 12, 4, 8, 8)
    _refer(made, entry + 4, text)
    struct.pack_into("<I", made, entry + 8, len(buffers))
    struct.pack_into("<HHHHi", made, buffer - 8, 6, 8, 4, 0, 8)
    _refer(made, buffer + 4, data)
    _write_bytes(made, text, name.encode())
    _write_bytes(made, data, content)
    return bytes(made) + model


def read_entry(model: bytes, name: str) -> bytes | None:
    """Return the newest entry of a name; None where there is none.

    Raises:
        FormatError: it is no model, or a damaged one.
    """
    if not is_model(model):
        raise _damaged()
    try:
        root = _Table(model, _u32(model, 0))
        buffers = root.vector(_BUFFERS)
        for position in reversed(root.vector(_METADATA)):
            entry = _Table(model, position)
            if _bytes(model, entry.target(_NAME)) == name.encode():
                place = entry.place(_BUFFER)
                return _bytes(model, _Table(model, buffers[_u32(model, place)]).target(0))
    except (struct.error, IndexError) as error:
        raise _damaged() from error
    return None


class _Table:
    """A table at a position of a buffer."""

    def __init__(self, content: bytes, position: int) -> None:
        self._content, self._position = content, position
        self._vtable = position - _signed(content, position)

    def fields(self) -> int:
        """Return how many fields its vtable has."""
        return (_u16(self._content, self._vtable) - 4) // 2

    def place(self, field: int) -> int:
        """Return the position of a field; 0 where it is left out."""
        if field >= self.fields():
            return 0
        offset = _u16(self._content, self._vtable + 4 + 2 * field)
        return self._position + offset if offset else 0

    def target(self, field: int) -> int:
        """Return the position that a field refers to; 0 where it is left out."""
        place = self.place(field)
        return place + _u32(self._content, place) if place else 0

    def vector(self, field: int) -> list[int]:
        """Return the positions that a vector of references refers to."""
        start = self.target(field)
        if not start:
            return []
        count = _u32(self._content, start)
        offsets = struct.unpack_from(f"<{count}I", self._content, start + 4)
        return [start + 4 + 4 * n + offset for n, offset in enumerate(offsets)]


def _refer(made: bytearray, place: int, target: int) -> None:
    struct.pack_into("<I", made, place, target - place if target else 0)


def _write_vector(made: bytearray, place: int, targets: list[int]) -> None:
    struct.pack_into("<I", made, place, len(targets))
    for number, target in enumerate(targets):
        _refer(made, place + 4 + 4 * number, target)


def _write_bytes(made: bytearray, place: int, content: bytes) -> None:
    struct.pack_into("<I", made, place, len(content))
    made[place + 4 : place + 4 + len(content)] = content


def _bytes(content: bytes, place: int) -> bytes:
    return content[place + 4 : place + 4 + _u32(content, place)]


def _u16(content: bytes, place: int) -> int:
    return int(struct.unpack_from("<H", content, place)[0])


def _u32(content: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", content, place)[0])


def _signed(content: bytes, place: int) -> int:
    return int(struct.unpack_from("<i", content, place)[0])


def _damaged() -> FormatError:
    return FormatError("It is no LiteRT model, or is damaged. To do: write it again.")
