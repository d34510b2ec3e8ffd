"""A function that is ready for it becomes an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import onnx
from onnx import helper

from bridge.core.size_polynomials import Shape, parse_size
from bridge.onnx.graph.graph_builder import Graph, NewerOpset
from bridge.onnx.graph.kernels import dtype_of
from bridge.onnx.graph.onnx_runtime import BITCAST_OPSET, DEFAULT_OPSET, OPSETS
from bridge.onnx.graph.protos import to_graph, to_tensor
from bridge.onnx.graph.values import Value
from bridge.onnx.sources import Program
from bridge.onnx.walker import walk_main
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import linear_form
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError, VersionError
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import open_module

__all__ = ["BareModel", "convert", "embedded"]


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


def convert(program: Program, opset: int | None) -> BareModel:
    """The model of a function, without its initializers.

    Args:
        program: the function.
        opset: the version of ONNX's operations; None for the usual one, or the first that has all
            that the function needs.

    Raises:
        InteropError: as `bridge.to_onnx` says.
    """
    version = DEFAULT_OPSET if opset is None else opset
    if version not in OPSETS or not isinstance(version, int | np.integer):
        raise VersionError(
            f"opset is {opset!r}; expected {OPSETS[0]} to {OPSETS[-1]}, for which this package "
            "knows what ONNX Runtime computes. To do: take one of these, or leave it out."
        )
    known = onnx.defs.onnx_opset_version()
    if version > known:
        raise VersionError(
            f"opset is {version}, and the installed onnx {onnx.__version__} knows those up to "
            f"{known}. To do: take an older one, or a newer onnx."
        )
    may_rise = opset is None and known >= BITCAST_OPSET
    try:
        try:
            return _convert(program, int(version), may_rise=may_rise)
        except NewerOpset:
            return _convert(program, BITCAST_OPSET, may_rise=False)
    except RecursionError as error:
        raise StructureError(
            f"{program.call.name} has regions in regions, such as branches in branches, deeper "
            "than Python's stack. To do: write some of them as functions of their own, or raise "
            "sys.setrecursionlimit."
        ) from error


def _convert(program: Program, version: int, *, may_rise: bool) -> BareModel:
    outermost = Graph(version, may_rise=may_rise)
    # Before all others: what a user calls them is not changed.
    names = [outermost.unique(name) for name in program.outputs]
    arguments = _arguments(outermost, program)
    graph = Graph(version, outer=outermost)
    with open_module(program.call.module) as module:
        compose_custom_calls(module)
        results = walk_main(graph, module, [arguments[index] for index in program.call.kept])
        for name, value, spec in zip(names, results, program.call.results, strict=True):
            graph.add_result(value, name, spec.shape)
    proto, initializers = to_graph(graph, program.call.name)
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid("", version)],
        ir_version=helper.OP_SET_ID_VERSION_MAP["ai.onnx", version],
        producer_name="jax-tf-bridge",
        producer_version=metadata.version("jax-tf-bridge"),
    )
    return BareModel(model, initializers)


def _arguments(graph: Graph, program: Program) -> list[Value]:
    """The values of the arguments; dimension variables follow from their shapes."""
    values = []
    taken = {index: graph.unique(name) for index, name in program.inputs.items()}
    for index, spec in enumerate(program.call.args):
        dtype = dtype_of(spec.dtype.mlir, where=spec.path)
        if index in program.parameters:
            name, array = program.parameters[index]
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
        raise StructureError(f"{spec.path} has no known rank, which ONNX needs.")
    return tuple(map(parse_size, spec.shape))
