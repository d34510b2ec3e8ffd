"""Other shapes of the same elements, and the sizes of shapes."""

from __future__ import annotations

from bridge.core.size_polynomials import Dim, floordiv, is_static, product
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value, contents_of, of_sizes

__all__ = ["RULES"]


def _get_dimension_size(graph: Graph, op: Operation) -> Value:
    del graph
    return of_sizes((op.operands[0].shape[op.integer("dimension")],), op.result.dtype, ())


def _set_dimension_size(graph: Graph, op: Operation) -> Value:
    """The array as it is, where it is that large already."""
    del graph
    value, size = op.operands
    if contents_of(size) != (value.shape[op.integer("dimension")],):
        op.refuse(
            "it makes a dimension shorter without changing its type, and ONNX has no such arrays",
            "take a slice of the array",
        )
    return value


def _reshape(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    known = [dim for dim in op.result.shape if dim is not None]
    if len(known) == len(op.result.shape):
        return nodes.reshape(graph, value, known)
    rest = product(known)  # a size of no more than some number follows from the others
    if len(known) < len(op.result.shape) - 1 or rest == 0:
        op.refuse("several sizes of its result follow from nothing", "say how large they are")
    size = floordiv(product(value.shape), rest)
    return nodes.reshape(graph, value, [size if d is None else d for d in op.result.shape])


def _dynamic_reshape(graph: Graph, op: Operation) -> Value:
    shape = [dim for dim in op.shape_like(op.sizes(graph, 1)) if dim is not None]
    return nodes.reshape(graph, op.operands[0], shape)


def _transpose(graph: Graph, op: Operation) -> Value:
    return nodes.transpose(graph, op.operands[0], op.integers("permutation"))


def _concatenate(graph: Graph, op: Operation) -> Value:
    axis = op.integer("dimension")
    if axis == 0 and any(value.sizes is not None for value in op.operands):
        contents = [_row_by_row(graph, value) for value in op.operands]
        dims = [dim for sizes in contents for dim in sizes or ()]
        shape = tuple(dim for dim in op.result.shape if dim is not None)
        if None not in contents and product(shape) == len(dims):
            return of_sizes(tuple(dims), op.result.dtype, shape)
    return nodes.concat(graph, op.operands, axis)


def _row_by_row(graph: Graph, value: Value) -> tuple[Dim, ...] | None:
    """The sizes that integers of any shape are made of; None where they are not known."""
    if not is_static(value.shape) or (value.sizes is None and value.array is None):
        return None
    return contents_of(nodes.reshape(graph, value, (product(value.shape),)))


RULES = {
    "stablehlo.concatenate": Rule(_concatenate, ("dimension",), whole=False),
    "stablehlo.dynamic_reshape": Rule(_dynamic_reshape, whole=False),
    "stablehlo.get_dimension_size": Rule(_get_dimension_size, ("dimension",), whole=False),
    "stablehlo.reshape": Rule(_reshape, whole=False),
    "stablehlo.set_dimension_size": Rule(_set_dimension_size, ("dimension",), whole=False),
    "stablehlo.transpose": Rule(_transpose, ("permutation",), whole=False),
}
