"""The file that a model is to be written to.

It is on a disk, and not there yet unless it may be replaced. Models of one call are files, which
appear whole or not at all; they are made in a folder beside the place
(`savedmodel.files.folder.hidden_folder`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from savedmodel.files.remote import is_remote, parse_path
from xla_call_module.errors import StructureError


def _alone(path: Path) -> Sequence[Path]:
    del path
    return ()


def target_file(
    path: Any, *, overwrite: bool, beside: Callable[[Path], Sequence[Path]] = _alone
) -> Path:
    """Return the absolute path of the file to write, if it may be written.

    >>> target_file("model.onnx", overwrite=True).name
    'model.onnx'
    """
    path = parse_path(path)
    if is_remote(path):
        raise StructureError(
            f"{path!r} is not a file on a disk, where the model is written. To do: write it to "
            "one, and copy it."
        )
    target = Path(os.path.abspath(path))
    for file in (target, *beside(target)):
        if file.is_dir() or (file.exists() and not overwrite):
            raise StructureError(
                f"{file} exists. To do: take another path, or overwrite=True for a file."
            )
    return target
