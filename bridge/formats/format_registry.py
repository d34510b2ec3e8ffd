"""The formats of files, each in the module that the list names, and the format of a path.

The modules are imported when a format is looked up, so that no verb imports the room of a target.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from typing import Any

from bridge.formats.file_format import FileFormat, Runtime

# The first that recognises a path is its format; a serialized `Exported` has no first bytes.
FORMATS = (
    "bridge.formats.saved_model_format:SAVED_MODEL",
    "bridge.onnx.onnx_format:ONNX",
    "bridge.litert.litert_format:LITERT",
    "bridge.formats.exported_format:STABLEHLO",
    "bridge.formats.exported_format:EXPORTED",
)
_HEAD_BYTES = 1 << 20


def all_formats() -> Iterator[FileFormat]:
    """Yield all formats, of which each is imported when it is reached.

    >>> next(all_formats()).name
    'a SavedModel'
    """
    yield from map(pkgutil.resolve_name, FORMATS)


def format_runtimes() -> dict[str, Runtime]:
    """Return the runtime of each format that has one, by its name on the command line.

    >>> [*format_runtimes()]
    ['tensorflow', 'onnx', 'litert']
    """
    return {each.runtime.option: each.runtime for each in all_formats() if each.runtime}


def file_names() -> str:
    """Return what files there are besides SavedModels, for messages after `the file of`."""
    *others, last = [each.name for each in all_formats()][1:]
    return f"{', of '.join(others)} or of {last}"


def format_of(path: Any) -> FileFormat:
    """Return the format of a path; that of SavedModels for what is no file on a disk."""
    head = b""
    if isinstance(path, str | os.PathLike) and os.path.isfile(path):
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    return next(each for each in all_formats() if each.recognises(name, head))
