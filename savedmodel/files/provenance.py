"""Which TensorFlow wrote a file, if one did, read without reading the graph.

`tf.saved_model.save` writes its version and the git revision that it was built from into
`MetaInfoDef`, the first field of a meta graph (tensorflow/core/protobuf/meta_graph.proto). Other
writers, ours among them, have no git revision to give.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from savedmodel.files.model_folder import ModelFolder, locate
from savedmodel.files.sstable import damage
from savedmodel.protos.wire_format import MAX_VARINT_BYTES, decode_varint

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


def tensorflow_writer(path: str | os.PathLike[str], *, within: ModelFolder | None = None) -> str:
    """Return the version of the TensorFlow that wrote a saved_model.pb; empty where none did.

    Args:
        path: the file.
        within: the folder that the path begins at; by default the one that the file is in.

    Raises:
        FormatError: it is no protobuf message.
        OSError: it cannot be read.
    """
    folder, name = locate(path, within)
    with folder.open(name) as opened:
        file = _File(folder.path / name, opened)
        for graph in _fields(file, 0, os.fstat(opened.fileno()).st_size):
            if graph.number != _META_GRAPHS:
                continue
            for info in _fields(file, graph.start, graph.end):
                if info.number == _META_INFO:
                    texts = {
                        field.number: file.read(
                            field.start, min(field.end - field.start, _LONGEST_TEXT)
                        )
                        for field in _fields(file, info.start, info.end)
                        if field.number in (_VERSION, _GIT_VERSION)
                    }
                    written = texts.get(_VERSION, b"") if texts.get(_GIT_VERSION) else b""
                    return written.decode(errors="replace")
    return ""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    opened: BinaryIO

    def read(self, start: int, size: int) -> bytes:
        """The bytes from a position on, fewer at the end."""
        self.opened.seek(start)
        return self.opened.read(size)


def _fields(file: _File, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message, those of them that have a length with where their bytes are."""
    position = start
    while position < end:
        tag, position = _varint(file, position, end)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = _varint(file, position, end)
            if size > end - position:
                flaw = f"a field of {size} bytes reaches beyond byte {end}"
                raise damage(file.path, position, flaw)
            yield _Field(number, position, position + size)
            position += size
        elif kind == 0:
            _, position = _varint(file, position, end)
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise damage(file.path, position, f"a field has the wire type {kind}")


def _varint(file: _File, start: int, end: int) -> tuple[int, int]:
    try:
        value, size = decode_varint(file.read(start, min(end - start, MAX_VARINT_BYTES)), 0)
    except IndexError as error:
        raise damage(file.path, start, "a number has no end") from error
    return value, start + size
