"""The file beside a model that has its weights."""

from __future__ import annotations

from pathlib import Path

from savedmodel.files.folder import fit_name

__all__ = ["data_of"]


def data_of(path: Path) -> Path:
    """Where the weights of a model are that are not in its file.

    >>> str(data_of(Path("model.onnx")))
    'model.onnx.data'
    """
    suffix = ".data"
    return path.with_name(f"{fit_name(path.name, len(suffix))}{suffix}")
