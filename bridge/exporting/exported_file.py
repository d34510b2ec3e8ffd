"""Files with what `jax.export.Exported.serialize` returned."""

from __future__ import annotations

import os

from jax import export

from savedmodel.files.model_folder import read_file
from xla_call_module.errors import StructureError
from xla_call_module.exported import parse_exported

MAX_EXPORTED_BYTES = 1 << 31  # flatbuffers' own limit


def read_exported(
    path: str | bytes | bytearray | os.PathLike[str], *, stand_ins: bool = False
) -> export.Exported:
    """Return the `Exported` in a file, or in its bytes."""
    if isinstance(path, (bytes, bytearray)):
        content, where = bytes(path), "the bytes"
    elif os.path.isdir(path):
        raise StructureError(
            f"{os.fspath(path)} is a folder; expected the file of a serialized Exported. To do: of "
            "a SavedModel, pass bridge.load(path).signatures[key].exported."
        )
    else:
        content, where = read_file(path, limit=MAX_EXPORTED_BYTES), os.fspath(path)
    return parse_exported(content, where, stand_ins=stand_ins)
