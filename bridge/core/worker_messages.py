"""Messages between a process and one that works for it, through pipes.

A message, here and there, is 8 bytes with the length of a header (little endian), the header as
JSON, and as many bytes as the numbers in the header's `sizes` add up to. A request has `verb`, the
name of a method of what answers; an answer has what that returned, or `error`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

Answer = tuple[dict[str, Any], Sequence[Any]]


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the header and the parts of the next message; None at the end of a stream."""
    head = _read(stream, 8)
    if head is None:
        return None
    header = _read(stream, *struct.unpack("<Q", head))
    if header is None:
        return None
    fields = json.loads(header)
    parts = [_read(stream, size) for size in fields.pop("sizes")]
    return None if None in parts else (fields, [part for part in parts if part is not None])


def _read(stream: IO[bytes], size: int) -> bytes | None:
    data = stream.read(size)
    return data if len(data) == size else None


def write_message(stream: IO[bytes], header: Mapping[str, Any], parts: Sequence[Any] = ()) -> None:
    """Write a message whose parts are bytes or arrays."""
    data = [part if isinstance(part, bytes) else part.tobytes() for part in parts]
    text = json.dumps({**header, "sizes": [len(part) for part in data]}).encode()
    stream.write(struct.pack("<Q", len(text)) + text)
    for part in data:
        stream.write(part)
    stream.flush()


def describe_arrays(arrays: Mapping[str, Any]) -> list[Any]:
    """Return the name, the dtype and the shape of each array, for a header."""
    return [[name, array.dtype.name, [*array.shape]] for name, array in arrays.items()]


def read_arrays(described: Sequence[Any], parts: Sequence[bytes]) -> dict[str, Any]:
    """Return the arrays that `describe_arrays` described."""
    return {
        name: np.frombuffer(bytearray(part), np.dtype(dtype)).reshape(shape)
        for (name, dtype, shape), part in zip(described, parts, strict=True)
    }


def answer_requests(worker: Any) -> None:
    """Answer requests until there are no more, with the methods of an object.

    What libraries print goes to the standard error.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (message := read_message(sys.stdin.buffer)) is not None:
        write_message(answers, *_answer(worker, *message))


def _answer(worker: Any, header: Mapping[str, Any], parts: list[bytes]) -> Answer:
    """Return the answer to a request; an error becomes one, too."""
    options = {key: value for key, value in header.items() if key != "verb"}
    try:
        return getattr(worker, header["verb"])(parts, **options)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - it is handed on
        return {"error": f"{type(error).__name__}: {error}"}, []
