"""An ONNX model as a file, or as two: large weights are apart."""

from __future__ import annotations

from pathlib import Path

import onnx

from bridge.onnx.graph.data_file import data_of
from bridge.onnx.graph.protos import to_tensor
from bridge.onnx.onnx_model import BareModel, convert
from bridge.onnx.sources import Program
from savedmodel.files.folder import hidden_folder
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError

__all__ = ["save"]

# protobuf reads no message of 2 GiB or more; past half of that the weights get a file of their own.
_LARGE = 1 << 30
# Weights are mapped into memory from there on, in whole pages.
_ALIGNED = 4096
_MAPPED_FROM = 1024


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
