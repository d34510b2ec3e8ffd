"""Tables of a FlatBuffer, read with every offset checked, in time that its size bounds.

Source: https://flatbuffers.dev/internals/ (little-endian; a table begins with the signed distance
back to its vtable, whose entries are the places of the fields; other objects are found by unsigned
distances ahead).
"""

from __future__ import annotations

import struct

from xla_call_module.errors import FormatError

_MAX_BYTES = 2**31 - 1
_SIZES = {code: struct.calcsize(f"<{code}") for code in "?bBhHiIqQ"}


class _Buffer:
    """The bytes, and how many of them may still be read.

    An honest buffer has each object once, so that all that is read together is no more than it has.
    """

    __slots__ = ("_data", "_left")

    def __init__(self, data: bytes) -> None:
        if len(data) > _MAX_BYTES:
            raise FormatError(f"A FlatBuffer has {len(data)} bytes; at most 2 GiB is possible.")
        self._data = data
        self._left = len(data)

    def number(self, code: str, position: int) -> int:
        """Return the number at a place."""
        self._check(position, _SIZES[code])
        return int(struct.unpack_from(f"<{code}", self._data, position)[0])

    def numbers(self, code: str, position: int, count: int) -> tuple[int, ...]:
        """Return the numbers from a place on."""
        size = _SIZES[code] * count
        self._check(position, size)
        self.spend(size, position)
        return struct.unpack_from(f"<{count}{code}", self._data, position)

    def block(self, position: int, size: int) -> bytes:
        """Return the bytes from a place on."""
        self._check(position, size)
        self.spend(size, position)
        return bytes(self._data[position : position + size])

    def ahead(self, position: int) -> int:
        """Return the place that the distance at a place leads to."""
        distance = self.number("I", position)
        if not distance:
            raise FormatError(f"A FlatBuffer has no object for the distance at byte {position}.")
        return position + distance

    def spend(self, size: int, position: int) -> None:
        """Count what is read."""
        self._left -= size
        if self._left < 0:
            raise FormatError(
                f"A FlatBuffer of {len(self._data)} bytes has objects, the last at byte "
                f"{position}, that share their bytes. To do: write it again."
            )

    def _check(self, position: int, size: int) -> None:
        if position < 0 or size < 0 or position + size > len(self._data):
            raise FormatError(
                f"A FlatBuffer of {len(self._data)} bytes has an object of {size} bytes at byte "
                f"{position}. To do: copy it again, or write it again."
            )


class FlatTable:
    """One table; its fields are known by their numbers in the schema."""

    __slots__ = ("_buffer", "_fields", "_position", "_vtable")

    def __init__(self, buffer: _Buffer, position: int) -> None:
        """Find the vtable of the table at a place."""
        self._buffer, self._position = buffer, position
        self._vtable = position - buffer.number("i", position)
        size = buffer.number("H", self._vtable)
        buffer.spend(4, position)
        self._fields = (size - 4) // 2

    def _place(self, field: int) -> int | None:
        """Return the place of a field; None where the table does not have it."""
        if field >= self._fields:
            return None
        offset = self._buffer.number("H", self._vtable + 4 + 2 * field)
        return self._position + offset if offset else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        """Return a number, of the type that `struct` has the code for."""
        place = self._place(field)
        return default if place is None else self._buffer.number(code, place)

    def has(self, field: int) -> bool:
        """Return whether the table has a field."""
        return self._place(field) is not None

    def table(self, field: int) -> FlatTable | None:
        """Return a table; None for none."""
        place = self._place(field)
        return None if place is None else FlatTable(self._buffer, self._buffer.ahead(place))

    def tables(self, field: int) -> list[FlatTable]:
        """Return the tables of a vector."""
        return [FlatTable(self._buffer, place) for place in self._ahead(field)]

    def texts(self, field: int) -> tuple[str, ...]:
        """Return the texts of a vector."""
        return tuple(self._text(place) for place in self._ahead(field))

    def text(self, field: int) -> str:
        """Return a text; empty for none."""
        place = self._place(field)
        return "" if place is None else self._text(self._buffer.ahead(place))

    def block(self, field: int) -> bytes:
        """Return the bytes of a vector; none for none."""
        start, count = self._vector(field)
        return self._buffer.block(start, count)

    def numbers(self, field: int, code: str) -> tuple[int, ...]:
        """Return the numbers of a vector."""
        start, count = self._vector(field)
        return self._buffer.numbers(code, start, count)

    def _vector(self, field: int) -> tuple[int, int]:
        """Return the place of the first element of a vector, and how many there are."""
        place = self._place(field)
        if place is None:
            return 0, 0
        start = self._buffer.ahead(place)
        return start + 4, self._buffer.number("I", start)

    def _ahead(self, field: int) -> list[int]:
        """Return the places of the objects of a vector."""
        start, count = self._vector(field)
        distances = self._buffer.numbers("I", start, count)
        return [start + 4 * index + distance for index, distance in enumerate(distances)]

    def _text(self, place: int) -> str:
        data = self._buffer.block(place + 4, self._buffer.number("I", place))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"A FlatBuffer has no UTF-8 text at byte {place}: {error}."
            ) from error


def read_root(data: bytes) -> FlatTable:
    """Return the table that a FlatBuffer is."""
    buffer = _Buffer(data)
    return FlatTable(buffer, buffer.ahead(0))
