"""An ONNX model as a file, or as two: large weights are apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx

from bridge.onnx.graph.protos import to_tensor
from bridge.onnx.onnx_model import BareModel, convert
from bridge.onnx.sources import Program
from savedmodel.files.folder import fit_name, hidden_folder
from savedmodel.files.remote import is_remote
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError

__all__ = ["check_target", "save"]

# protobuf reads no message of 2 GiB or more; past half of that the weights get a file of their own.
_LARGE = 1 << 30
# Weights are mapped into memory from there on, in whole pages.
_ALIGNED = 4096
_MAPPED_FROM = 1024


def check_target(path: Any, external_data: Any, *, overwrite: bool) -> Path:
    """Return the absolute path of the file to write, if it may be written.

    Raises:
        StructureError: an option is none of those that there are, or there is a file.
    """
    if not isinstance(external_data, bool) and not (
        isinstance(external_data, str) and external_data == "auto"
    ):
        raise StructureError(f"external_data is {external_data!r}; expected 'auto', True or False.")
    if not isinstance(path, str | os.PathLike) or is_remote(path):
        raise StructureError(
            f"The model is to be written to {path!r}; expected the path of a file on a disk. To "
            "do: write it there, and copy it to where it is to be."
        )
    target = Path(os.path.abspath(path))
    for file in (target, data_of(target)):
        if file.is_dir() or (file.exists() and not overwrite):
            raise StructureError(
                f"{file} exists. To do: take another path, or overwrite=True for a file."
            )
    return target


def data_of(path: Path) -> Path:
    """Return the path of the file beside a model that has its weights.

    >>> str(data_of(Path("model.onnx")))
    'model.onnx.data'
    """
    suffix = ".data"
    return path.with_name(f"{fit_name(path.name, len(suffix))}{suffix}")


def save(program: Program, target: Path, *, opset: int | None, external_data: str | bool) -> None:
    """Write the model of a function, whole or not at all.

    Raises:
        InteropError: an operation that ONNX cannot express, or more weights than one file takes.
        OSError: the file cannot be written.
    """
    bare = convert(program, opset)
    size = sum(array.nbytes for array in bare.initializers.values())
    apart = size >= _LARGE if external_data == "auto" else bool(external_data)
    if not apart and size >= onnx.checker.MAXIMUM_PROTOBUF:
        raise StructureError(
            f"{program.call.name} has {size:,} bytes of weights, and one file of ONNX's holds less "
            f"than {onnx.checker.MAXIMUM_PROTOBUF:,}. To do: leave out external_data=False, so "
            "that they get a file of their own."
        )
    with hidden_folder(target.parent, target.name) as folder:
        made = folder / target.name
        _write(bare, made, apart=apart)
        onnx.checker.check_model(str(made), full_check=True)
        was_there = target.exists()
        if apart:
            data_of(made).replace(data_of(target))
        made.replace(target)
        if was_there and not apart:
            data_of(target).unlink(missing_ok=True)  # the weights of the one before


def _write(bare: BareModel, path: Path, *, apart: bool) -> None:
    graph = bare.proto.graph
    if not apart:
        graph.initializer.extend(to_tensor(*item) for item in bare.initializers.items())
        path.write_bytes(bare.proto.SerializeToString(deterministic=True))
        return
    with data_of(path).open("wb") as data:
        for name, array in bare.initializers.items():
            if array.nbytes < _MAPPED_FROM:
                graph.initializer.append(to_tensor(name, array))
                continue
            data.write(bytes(-data.tell() % _ALIGNED))
            graph.initializer.append(_external(name, array, data_of(path).name, data.tell()))
            array.tofile(data)
            data.flush()
    path.write_bytes(bare.proto.SerializeToString(deterministic=True))


def _external(name: str, array: Array, file: str, offset: int) -> onnx.TensorProto:
    tensor = to_tensor(name, array[:0].reshape(0)) if array.ndim else to_tensor(name, array)
    del tensor.dims[:]
    tensor.dims.extend(array.shape)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": file, "offset": str(offset), "length": str(array.nbytes)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor
