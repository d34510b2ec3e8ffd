"""The report of an ONNX model for `bridge.inspect`; the model is not run."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge.inspecting.graph_report import GraphReport, GraphSignature
from bridge.inspecting.operation_counts import most_frequent
from bridge.inspecting.report import FileReport, ParameterReport, StoredFile
from bridge.inspecting.tensor_report import TensorReport
from bridge.onnx.conversion import check_installed
from xla_call_module.errors import FormatError, quote

# The names that ONNX has for two dtypes, and JAX others (https://onnx.ai/onnx/intro/concepts.html).
_NAMES = {"float": "float32", "double": "float64"}


def report_of_onnx(path: Path) -> FileReport:
    """Return the report of an ONNX model of any writer.

    The operations of branches and loops are counted, too, each as often as it is written down.
    """
    check_installed()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
    except DecodeError as error:
        raise FormatError(
            f"{path} is not an ONNX model, or is damaged: {quote(error)}. To do: write it again."
        ) from error
    graph = model.graph
    if not graph.node and not graph.output:
        raise FormatError(f"{path} is not an ONNX model: it has no graph. To do: write it again.")
    operations = most_frequent(Counter(_operations(graph.node)))
    weights = {tensor.name for tensor in graph.initializer}
    signature = GraphSignature(
        graph.name,
        tuple(_tensor(value) for value in graph.input if value.name not in weights),
        tuple(map(_tensor, graph.output)),
        operations,
    )
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
    files = _files(path, graph.initializer)
    return FileReport(
        path=os.fspath(path),
        bytes=sum(file.bytes for file in files),
        parameters=_parameters(graph.initializer),
        metadata={"opset": opsets, "ir_version": int(model.ir_version)},
        writer=f"{model.producer_name or 'another program'} {model.producer_version}".strip(),
        files=files,
        others={graph.name: ", ".join([*operations][:8])},
        graph=GraphReport(
            signatures=(signature,),
            operations=operations,
            functions={function.name: len(function.node) for function in model.functions},
            calls=(),
        ),
    )


def _operations(nodes: Sequence[Any]) -> Iterator[str]:
    """Yield the operations of a graph, and of the graphs that its branches and loops are."""
    for node in nodes:
        yield f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _operations(inner.node)


def _tensor(value: Any) -> TensorReport:
    kind = value.type.tensor_type
    shape = None
    if kind.HasField("shape"):
        shape = tuple(
            int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param) or "_"
            for dim in kind.shape.dim
        )
    return TensorReport(value.name, "", _dtype(kind.elem_type), shape, "", used=True)


def _dtype(number: int) -> str:
    import onnx

    name = onnx.TensorProto.DataType.Name(number).lower()
    return _NAMES.get(name, name)


def _parameters(tensors: Sequence[Any]) -> tuple[ParameterReport, ...]:
    sizes = [_size(tensor) for tensor in tensors]
    total = sum(sizes) or 1
    return tuple(
        ParameterReport(
            tensor.name,
            _dtype(tensor.data_type),
            tuple(map(int, tensor.dims)),
            size,
            trainable=False,
            constant=False,
            share=size / total,
        )
        for tensor, size in zip(tensors, sizes, strict=True)
    )


def _size(tensor: Any) -> int:
    """Return the number of bytes of a value, which may be in a file of its own."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if entries.get("length", "").isdecimal():
        return int(entries["length"])
    if tensor.raw_data:
        return len(tensor.raw_data)
    from onnx import helper

    itemsize: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return math.prod(map(int, tensor.dims)) * itemsize


def _files(path: Path, tensors: Sequence[Any]) -> tuple[StoredFile, ...]:
    """Return the file, and those beside it that have weights."""
    names = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    beside = [name for name in sorted(names) if os.path.basename(name) == name]
    existing = [name for name in (path.name, *beside) if (path.parent / name).is_file()]
    return tuple(StoredFile(name, (path.parent / name).stat().st_size) for name in existing)
