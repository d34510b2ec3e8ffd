"""A bound call becomes an ONNX model, and a file, or two of them: large weights are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from bridge.core_ops.graph_walk import walk_main
from bridge.core_ops.stablehlo_operation import ModuleContents
from bridge.exporting.source import ModelFormat
from bridge.graphs.values import Value
from bridge.inspecting.tensor_report import TensorReport
from bridge.inspecting.written_file import WrittenSignature
from bridge.onnx.graph.graph_builder import Graph, NewerOpset
from bridge.onnx.graph.kernels import dtype_of
from bridge.onnx.graph.onnx_runtime import BITCAST_OPSET, DEFAULT_OPSET, OPSETS
from bridge.onnx.graph.protos import to_graph, to_tensor
from bridge.onnx.operation_table import TARGET
from bridge.sources.bound_call import BoundCall
from bridge.sources.target_file import target_file
from savedmodel.files.folder import bytes_of, fit_name, hidden_folder
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import linear_form, parse_size
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError, VersionError
from xla_call_module.node import INEXACT
from xla_call_module.size_polynomials import Shape
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import open_module

ONNX = ModelFormat(name="an ONNX model", custom_calls=tuple(TARGET.custom_calls))

# protobuf reads no message of 2 GiB or more; past half of that the weights get a file of their own.
_MAX_EMBEDDED_BYTES = 1 << 30
# Weights are mapped into memory from there on, in whole pages.
_ALIGNMENT = 4096
_MIN_MAPPED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class BareModel:
    """A model and, apart from it, its initializers."""

    proto: onnx.ModelProto
    initializers: Mapping[str, Array]


def embedded(bare: BareModel) -> onnx.ModelProto:
    """The model with its initializers, checked where protobuf can carry it."""
    model = bare.proto
    model.graph.initializer.extend(to_tensor(*item) for item in bare.initializers.items())
    if sum(array.nbytes for array in bare.initializers.values()) < onnx.checker.MAXIMUM_PROTOBUF:
        onnx.checker.check_model(model, full_check=True)
    return model


def serialized(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model."""
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        raise StructureError(
            f"verify=True: the model has {model.ByteSize():,} bytes, and one file of ONNX's less "
            f"than {onnx.checker.MAXIMUM_PROTOBUF:,}. To do: write it by bridge.save_onnx, with "
            "verify=True."
        )
    return model.SerializeToString(deterministic=True)


def decomposed(bound: BoundCall) -> BoundCall:
    """Return a bound call of operations and elements that ONNX has."""
    if not TARGET.lacks(ModuleContents.of(bound.call)):
        return bound
    from bridge.onnx.decomposed_call import decompose_bound  # which imports the room of lifting

    return decompose_bound(bound)


def convert(bound: BoundCall, opset: int | None, *, exact: bool = True) -> BareModel:
    """The model of a function, without its initializers."""
    version = DEFAULT_OPSET if opset is None else opset
    if version not in OPSETS or not isinstance(version, int | np.integer):
        raise VersionError(
            f"opset is {opset!r}; expected {OPSETS[0]} to {OPSETS[-1]}, which this package "
            "supports. To do: take one of these, or leave it out."
        )
    known = onnx.defs.onnx_opset_version()
    if version > known:
        raise VersionError(
            f"opset is {version}, and the installed onnx {onnx.__version__} has {known} at most. "
            "To do: take an older one, or a newer onnx."
        )
    may_rise = opset is None and known >= BITCAST_OPSET
    try:
        try:
            return _convert(bound, int(version), may_rise=may_rise, exact=exact)
        except NewerOpset:
            return _convert(bound, BITCAST_OPSET, may_rise=False, exact=exact)
    except RecursionError as error:
        raise StructureError(
            f"{bound.call.name} has regions in regions, such as branches in branches, deeper "
            "than Python's stack. To do: write some of them as functions of their own, or raise "
            "sys.setrecursionlimit."
        ) from error


def _convert(bound: BoundCall, version: int, *, may_rise: bool, exact: bool) -> BareModel:
    outermost = Graph(version, may_rise=may_rise, exact=exact)
    # Before all others: what a user calls them is not changed.
    names = [outermost.unique(name) for name in bound.outputs]
    arguments = _arguments(outermost, bound)
    graph = Graph(outer=outermost)
    with open_module(bound.call.module) as module:
        compose_custom_calls(module)
        results = walk_main(graph, module, [arguments[index] for index in bound.call.kept], TARGET)
        for name, value, spec in zip(names, results, bound.call.results, strict=True):
            graph.add_result(value, name, spec.shape)
    proto, initializers = to_graph(graph, bound.call.name)
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", version)],
        ir_version=helper.OP_SET_ID_VERSION_MAP["ai.onnx", version],
        producer_name="jax-tf-bridge",
        producer_version=metadata.version("jax-tf-bridge"),
    )
    if not exact:
        helper.set_model_props(model, {INEXACT: "true"})
    return BareModel(model, initializers)


def _arguments(graph: Graph, bound: BoundCall) -> list[Value]:
    """The values of the arguments; dimension variables follow from their shapes."""
    values = []
    taken = {index: graph.unique(name) for index, name in bound.inputs.items()}
    for index, spec in enumerate(bound.call.args):
        dtype = dtype_of(spec.dtype.mlir, where=spec.path)
        if index in bound.parameters:
            name, array = bound.parameters[index]
            values.append(graph.add_parameter(graph.unique(name), array))
            continue
        value = graph.add_input(taken[index], dtype, _shape_of(spec), text=spec.shape)
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and (form := linear_form(dim)) is not None:
                graph.define(form[0], value, axis, form[1], form[2])
        values.append(value)
    return values


def _shape_of(spec: TensorSpec) -> Shape:
    if spec.shape is None:
        raise StructureError(
            f"{spec.path} has no known rank, which ONNX needs. To do: export it for a shape with "
            "names for its sizes."
        )
    return tuple(map(parse_size, spec.shape))


def check_target(path: Any, external_data: Any, *, overwrite: bool) -> Path:
    """Return the absolute path of the file to write, if it may be written."""
    if not isinstance(external_data, bool) and not (
        isinstance(external_data, str) and external_data == "auto"
    ):
        raise StructureError(f"external_data is {external_data!r}; expected 'auto', True or False.")
    return target_file(path, overwrite=overwrite, beside=lambda target: [data_of(target)])


def data_of(path: Path) -> Path:
    """Return the path of the file beside a model that has its weights.

    >>> str(data_of(Path("model.onnx")))
    'model.onnx.data'
    """
    suffix = ".data"
    return path.with_name(f"{fit_name(path.name, len(suffix))}{suffix}")


def save(
    bound: BoundCall,
    target: Path,
    *,
    opset: int | None,
    exact: bool,
    external_data: str | bool,
    check: Callable[[Path], None],
) -> dict[str, Any]:
    """Write the model of a function, whole or not at all; return the facts of a `WrittenFile`."""
    bound = decomposed(bound)
    bare = convert(bound, opset, exact=exact)
    size = sum(array.nbytes for array in bare.initializers.values())
    apart = size >= _MAX_EMBEDDED_BYTES if external_data == "auto" else bool(external_data)
    if not apart and size >= onnx.checker.MAXIMUM_PROTOBUF:
        raise StructureError(
            f"{bound.call.name} has {size:,} bytes of weights, and one file of ONNX's holds less "
            f"than {onnx.checker.MAXIMUM_PROTOBUF:,}. To do: leave out external_data=False, so "
            "that they get a file of their own."
        )
    with hidden_folder(target.parent, target.name) as folder:
        made = folder / target.name
        _write(bare, made, apart=apart)
        onnx.checker.check_model(str(made), full_check=True)
        check(made)
        written = bytes_of(folder)
        was_there = target.exists()
        if apart:
            data_of(made).replace(data_of(target))
        made.replace(target)
        if was_there and not apart:
            data_of(target).unlink(missing_ok=True)  # the weights of the one before
    return {
        "signatures": (_signature(bound, bare.proto),),
        "bytes": written,
        "parameter_bytes": size,
        "opset": bare.proto.opset_import[0].version,
    }


def _signature(bound: BoundCall, proto: onnx.ModelProto) -> WrittenSignature:
    """Return the inputs and outputs of a model, with the dtypes and dimensions of the call."""
    call = bound.call
    return WrittenSignature(
        key=proto.graph.name,
        inputs=tuple(
            TensorReport.of(name, call.args[index], used=index in call.kept)
            for index, name in bound.inputs.items()
        ),
        outputs=tuple(map(TensorReport.of, bound.outputs, call.results)),
    )


def _write(bare: BareModel, path: Path, *, apart: bool) -> None:
    graph = bare.proto.graph
    if not apart:
        graph.initializer.extend(to_tensor(*item) for item in bare.initializers.items())
        path.write_bytes(bare.proto.SerializeToString(deterministic=True))
        return
    with data_of(path).open("wb") as data:
        for name, array in bare.initializers.items():
            if array.nbytes < _MIN_MAPPED_BYTES:
                graph.initializer.append(to_tensor(name, array))
                continue
            data.write(bytes(-data.tell() % _ALIGNMENT))
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
