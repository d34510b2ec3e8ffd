"""Constants: what a module stores, and what counts up."""

from __future__ import annotations

from bridge.core.size_polynomials import Dim
from bridge.onnx.arrays.indexing import count_up
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value, of_array
from xla_call_module.stablehlo.elements import read_elements, read_splat

__all__ = ["RULES"]


def _constant(graph: Graph, op: Operation) -> Value:
    del graph
    dtype, shape = op.result.dtype, tuple(dim or 0 for dim in op.result.shape)
    repeated = read_splat(op.raw)
    if repeated is not None:
        return Value(dtype, shape, (), array=repeated.astype(dtype))
    return of_array(read_elements(op.raw).astype(dtype))


def _iota(graph: Graph, op: Operation) -> Value:
    return _counting(graph, op, tuple(dim or 0 for dim in op.result.shape))


def _dynamic_iota(graph: Graph, op: Operation) -> Value:
    shape = op.shape_like(op.sizes(graph, 0))
    return _counting(graph, op, tuple(dim for dim in shape if dim is not None))


def _counting(graph: Graph, op: Operation, shape: tuple[Dim, ...]) -> Value:
    """0, 1, 2, … along one dimension, to be broadcast along the others."""
    axis, dtype = op.integer("iota_dimension"), op.result.dtype
    size = shape[axis]
    numbers = count_up(graph, size)
    if numbers.array is None:
        line = graph.cast(numbers, dtype)
    else:
        line = of_array(numbers.array.astype(dtype))
    return nodes.place(graph, line, [axis], shape)


RULES = {
    "stablehlo.constant": Rule(_constant, ("value",)),
    "stablehlo.dynamic_iota": Rule(_dynamic_iota, ("iota_dimension",)),
    "stablehlo.iota": Rule(_iota, ("iota_dimension",)),
}
