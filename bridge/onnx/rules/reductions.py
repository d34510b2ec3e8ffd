"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.reductions import Reductions
from bridge.core_ops.regions import in_lines, may_be_empty, shape_without
from bridge.core_ops.softmaxes import Reduction
from bridge.graphs import layouts, nodes
from bridge.graphs.values import Value, of_array
from bridge.onnx.graph.graph_builder import Graph
from xla_call_module.stablehlo.combiners import identity_of

_OPERATIONS = {
    "add": "ReduceSum",
    "and": "ReduceMin",
    "maximum": "ReduceMax",
    "minimum": "ReduceMin",
    "multiply": "ReduceProd",
    "or": "ReduceMax",
}


def _reducer(name: str, value: Value) -> str:
    """Return a reducer that ONNX has: not of bits, integer products and sums of bools."""
    if name in ("and", "or"):
        has_it = value.dtype == bool
    else:
        has_it = value.is_float or (value.dtype != bool and name != "multiply")
    return name if has_it and name in _OPERATIONS else ""


def reduce_along(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """The reduction along some dimensions.

    ONNX Runtime finds NaN among the least and greatest of numbers only in some places, so it is
    looked for apart.
    """
    if all(value.shape[axis] == 1 for axis in axes):
        return nodes.squeeze(graph, value, axes)
    if may_be_empty(value, axes):
        value, axes = _with_identity(graph, reducer, value, axes)
    if reducer == "add" and not value.is_float:
        return _sum_of_integers(graph, value, axes)
    is_order = reducer in ("maximum", "minimum")
    if is_order and value.dtype.name in ("int64", "uint32", "uint64"):
        return _extreme_of_integers(graph, reducer, value, axes)
    value, axes = layouts.untransposed_axes(graph, graph.expand(value), axes)
    result = _node(graph, _OPERATIONS[reducer], value, axes)
    fact = Reduction(reducer, graph.reference(value), value.shape, tuple(axes))
    if not is_order or not value.is_float or not graph.exact:
        graph.remember(result, fact)
        return result
    is_nan = nodes.elementwise(graph, "IsNaN", value)
    any_nan = _node(graph, "ReduceMax", is_nan, axes)
    result = nodes.where(graph, any_nan, np.nan, result)
    graph.remember(result, fact)
    return result


def _sum_of_integers(graph: Graph, value: Value, axes: Sequence[int]) -> Value:
    """A product with ones, which wraps around; the runtime's own sum is in float64."""
    shape = shape_without(value.shape, axes)
    if 0 in shape:  # which the runtime's product does not take
        return nodes.constant_like(value, 0).broadcast_to(shape)
    lines = graph.expand(in_lines(graph, graph.expand(value), axes))
    ones = graph.expand(nodes.constant_like(value, 1).broadcast_to(lines.shape[-1:]))
    return graph.node("MatMul", [lines, ones], shape=lines.shape[:-1])


def _extreme_of_integers(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """The element where it is, since the runtime compares 32 bits; unsigned ones in their order."""
    bits = 8 * value.dtype.itemsize
    signed = _with_flipped_sign(graph, value, f"int{bits}") if value.is_unsigned else value
    if bits == 32:
        extreme = _node(graph, _OPERATIONS[reducer], signed, axes)
    else:
        lines = graph.expand(in_lines(graph, graph.expand(signed), axes))
        name = "ArgMax" if reducer == "maximum" else "ArgMin"
        where = _arg(graph, name, lines, lines.rank - 1)
        extreme = _take(graph, lines, where, lines.rank - 1)
    return _with_flipped_sign(graph, extreme, value.dtype.name) if value.is_unsigned else extreme


def _with_identity(
    graph: Graph, reducer: str, value: Value, axes: Sequence[int]
) -> tuple[Value, list[int]]:
    """Return what has an element to be reduced, and its dimension.

    Of no elements the runtime has another extreme, or none, before 1.30, and a sum of integers, a
    product, that nobody has written.
    """
    lines = in_lines(graph, graph.expand(value), axes)
    last = lines.rank - 1
    column = of_array(identity_of(reducer, value.dtype)).broadcast_to((*lines.shape[:-1], 1))
    return nodes.concat(graph, [lines, column], last), [last]


def _with_flipped_sign(graph: Graph, value: Value, dtype: str) -> Value:
    """Return unsigned integers as signed ones in the same order, or back."""
    sign = np.array(1 << 63 if "64" in dtype else 1 << 31, np.uint64).astype(dtype).item()
    return nodes.elementwise(graph, "BitwiseXor", nodes.cast(graph, value, dtype), sign)


def _node(graph: Graph, op_type: str, value: Value, axes: Sequence[int]) -> Value:
    value = graph.expand(value)
    shape = shape_without(value.shape, axes)
    return graph.node(op_type, [value, graph.vector(axes)], shape=shape, keepdims=0)


def _extreme_and_index(
    graph: Graph, order: str, values: Sequence[Value], axis: int
) -> Sequence[Value]:
    """The first greatest or least number, and where it is; or the first NaN."""
    value, counting = graph.expand(values[0]), values[1]
    where = _arg(graph, "ArgMax" if order == "max" else "ArgMin", value, axis)
    if value.is_float and graph.exact:
        is_nan = nodes.elementwise(graph, "IsNaN", value)
        first = _arg(graph, "ArgMax", nodes.cast(graph, is_nan, np.uint8), axis)
        any_nan = _node(graph, "ReduceMax", is_nan, [axis])
        where = nodes.where(graph, any_nan, first, where)
    return [_take(graph, value, where, axis), nodes.cast(graph, where, counting.dtype)]


def _arg(graph: Graph, op_type: str, value: Value, axis: int) -> Value:
    shape, kind = shape_without(value.shape, [axis]), np.dtype(np.int64)
    return graph.node(op_type, [value], shape=shape, dtype=kind, axis=axis, keepdims=0)


def _take(graph: Graph, value: Value, where: Value, axis: int) -> Value:
    """The element at an index along a dimension, for each place in the others."""
    column = graph.expand(nodes.expand_dims(graph, where, [axis]))
    taken = graph.node("GatherElements", [value, column], shape=column.shape, axis=axis)
    return nodes.squeeze(graph, taken, [axis])


_REDUCTIONS = Reductions(
    reducer=_reducer,
    along=reduce_along,
    extreme_and_place=_extreme_and_index,
    without_places=frozenset({"uint64"}),
)
RULES = _REDUCTIONS.rules()
