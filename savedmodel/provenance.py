"""Which TensorFlow wrote a file, if one did, read without reading the graph.

`tf.saved_model.save` writes its version and the git revision that it was built from into
`MetaInfoDef`, the first field of a meta graph (tensorflow/core/protobuf/meta_graph.proto). Other
writers, ours among them, have no git revision to give.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from savedmodel.sstable import damage

__all__ = ["tensorflow_writer"]

_META_GRAPHS = 2
_META_INFO = 1
_VERSION = 5
_GIT_VERSION = 6
_LENGTH_DELIMITED = 2
# Sizes of the values of the other wire types, https://protobuf.dev/programming-guides/encoding/.
_FIXED = {1: 8, 5: 4}
_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    start: int
    end: int


def tensorflow_writer(file: Path) -> str:
    """The version of the TensorFlow that wrote a saved_model.pb; empty where none did.

    Raises:
        FormatError: it is no protobuf message.
        OSError: it cannot be read.
    """
    if not file.stat().st_size:  # which cannot be mapped
        return ""
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for graph in _fields(file, data, 0, len(data)):
            if graph.number != _META_GRAPHS:
                continue
            for info in _fields(file, data, graph.start, graph.end):
                if info.number == _META_INFO:
                    texts = {
                        field.number: data[
                            field.start : min(field.end, field.start + _LONGEST_TEXT)
                        ]
                        for field in _fields(file, data, info.start, info.end)
                        if field.number in (_VERSION, _GIT_VERSION)
                    }
                    written = texts.get(_VERSION, b"") if texts.get(_GIT_VERSION) else b""
                    return written.decode(errors="replace")
    return ""


def _fields(file: Path, data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message, those of them that have a length with where their bytes are."""
    position = start
    while position < end:
        tag, position = _varint(file, data, position, end)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = _varint(file, data, position, end)
            if size > end - position:
                raise damage(file, position, f"a field of {size} bytes reaches beyond byte {end}")
            yield _Field(number, position, position + size)
            position += size
        elif kind == 0:
            _, position = _varint(file, data, position, end)
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise damage(file, position, f"a field has the wire type {kind}")


def _varint(file: Path, data: mmap.mmap, start: int, end: int) -> tuple[int, int]:
    value = 0
    for shift, position in enumerate(range(start, min(end, start + 10))):
        value |= (data[position] & 0x7F) << 7 * shift
        if data[position] < 0x80:
            return value, position + 1
    raise damage(file, start, "a number has no end")
