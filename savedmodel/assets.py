"""The asset files of a SavedModel: vocabularies and the like, which its operations open by name.

They lie in `assets/` and are listed in the meta graph (`AssetFileDef`), or lie in `assets.extra/`
and are listed nowhere (tensorflow/cc/saved_model/constants.h).
"""

from __future__ import annotations

import os
from pathlib import Path

from savedmodel.regular_file import check_inside
from savedmodel.schema import Proto
from xla_call_module.errors import FormatError

__all__ = ["asset_files"]

_ASSETS = "assets"
_EXTRA = "assets.extra"
_MAX_DEPTH = 32


def asset_files(folder: str | os.PathLike[str], meta_graph: Proto) -> tuple[str, ...]:
    """The paths of all assets below a SavedModel's folder, with slashes, sorted.

    None of them is opened. Every one is a regular file inside of the folder, so that a copy of it
    is a copy of nothing else.

    Args:
        folder: the SavedModel.
        meta_graph: its MetaGraphDef.

    Raises:
        FormatError: an asset is absolute, has `..`, leads out of the folder by a link, is no
            regular file, or is listed and not there.
    """
    folder = Path(folder)
    found = {*_files_below(folder, _ASSETS), *_files_below(folder, _EXTRA)}
    for asset in meta_graph.asset_file_def:
        name = f"{_ASSETS}/{asset.filename}"
        if asset.filename.startswith("/"):
            raise FormatError(f"{folder} has an asset with the absolute path {asset.filename!r}.")
        check_inside(folder, name)
        if name not in found:
            raise FormatError(f"{folder} lists an asset {asset.filename!r}, and has no {name}.")
    return tuple(sorted(found))


def _files_below(folder: Path, name: str, depth: int = 0) -> list[str]:
    path = folder / name
    if path.is_symlink():
        raise FormatError(f"{path} is a link. To do: copy the folder with what its links point to.")
    if not path.exists():
        return []
    if not path.is_dir() or depth > _MAX_DEPTH:
        raise FormatError(f"{path} is no folder, or one more than {_MAX_DEPTH} deep.")
    files: list[str] = []
    with os.scandir(path) as scanned:
        entries = list(scanned)
    for entry in entries:
        below = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            files += _files_below(folder, below, depth + 1)
        elif entry.is_symlink():
            raise FormatError(
                f"{folder / below} is a link. To do: copy the folder with what its links point to."
            )
        else:
            check_inside(folder, below)
            files.append(below)
    return files
