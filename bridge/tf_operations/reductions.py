"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.reductions import Reductions
from bridge.core_ops.regions import in_lines, shape_without
from bridge.core_ops.softmaxes import Reduction
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph

_OPERATIONS = {"add": "ReduceSum", "and": "All", "maximum": "ReduceMax", "minimum": "ReduceMin",
               "multiply": "ReduceProd", "or": "Any"}  # fmt: skip
_OF_BOOLS = {"add": "or", "maximum": "or", "minimum": "and", "multiply": "and"}


def _reducer(name: str, value: Value) -> str:
    """Return the reducer that TensorFlow has of some elements; of bools that of truth values."""
    if value.dtype == bool:
        name = _OF_BOOLS.get(name, name)
    elif name in ("and", "or") or (value.dtype.kind == "c" and name in ("maximum", "minimum")):
        return ""
    return name if name in _OPERATIONS else ""


def _reduced(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """Return the reduction along some dimensions."""
    if all(value.shape[axis] == 1 for axis in axes):
        return nodes.squeeze(graph, value, axes)
    value = graph.expand(value)
    shape = shape_without(value.shape, axes)
    fact = Reduction(reducer, graph.reference(value), value.shape, tuple(axes))
    vector = graph.vector(axes)
    result = graph.node(_OPERATIONS[reducer], [value, vector], shape=shape, keepdims=0)
    graph.remember(result, fact)
    return result


def _extreme_and_index(
    graph: Graph, order: str, values: Sequence[Value], axis: int
) -> Sequence[Value]:
    """Return the first greatest or least number, and where it is; or the first NaN."""
    value, counting = graph.expand(values[0]), values[1]
    where = _arg(graph, "ArgMax" if order == "max" else "ArgMin", value, axis)
    if value.is_float and graph.exact:
        is_nan = nodes.elementwise(graph, "IsNaN", value)
        first = _arg(graph, "ArgMax", graph.expand(nodes.cast(graph, is_nan, np.uint8)), axis)
        shape = shape_without(value.shape, [axis])
        vector = graph.vector([axis])
        any_nan = graph.node("Any", [graph.expand(is_nan), vector], shape=shape, keepdims=0)
        where = nodes.where(graph, any_nan, first, where)
    lines = graph.expand(in_lines(graph, value, [axis]))
    column = graph.expand(nodes.expand_dims(graph, where, [where.rank]))
    taken = graph.node("GatherElements", [lines, column], shape=column.shape, axis=where.rank)
    extreme = nodes.squeeze(graph, taken, [where.rank])
    return [extreme, nodes.cast(graph, where, counting.dtype)]


def _arg(graph: Graph, op_type: str, value: Value, axis: int) -> Value:
    shape, kind = shape_without(value.shape, [axis]), np.dtype(np.int64)
    return graph.node(op_type, [value], shape=shape, dtype=kind, axis=axis)


RULES = Reductions(reducer=_reducer, along=_reduced, extreme_and_place=_extreme_and_index).rules()
