"""Reductions along dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.regions import (
    in_lines,
    is_counting,
    is_identity,
    may_be_empty,
    reduce_by_region,
    reducer_of,
    shape_without,
)
from bridge.core_ops.softmaxes import Reduction
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.size_polynomials import product
from xla_call_module.stablehlo.combiners import extreme_and_place_of

__all__ = ["RULES"]

_OPERATIONS = {"add": "ReduceSum", "and": "All", "maximum": "ReduceMax", "minimum": "ReduceMin",
               "multiply": "ReduceProd", "or": "Any"}  # fmt: skip
_OF_BOOLS = {"add": "or", "maximum": "or", "minimum": "and", "multiply": "and"}
_COMBINING = {"add": "Add", "and": "And", "maximum": "Max", "minimum": "Min", "multiply": "Mul",
              "or": "Or"}  # fmt: skip
_NARROW = ("bfloat16", "float16")


def _reduce(graph: Graph, op: Operation) -> Sequence[Value]:
    count = len(op.operands) // 2
    values, starts = op.operands[:count], op.operands[count:]
    axes, (region,) = op.integers("dimensions"), op.regions
    if product(values[0].shape[axis] for axis in axes) == 0:
        shape = shape_without(values[0].shape, axes)
        return [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    reducer = reducer_of(region) if count == 1 else ""
    if values[0].dtype == bool:
        reducer = _OF_BOOLS.get(reducer, reducer)
    elif reducer in ("and", "or") or (
        values[0].dtype.kind == "c" and reducer in ("maximum", "minimum")
    ):
        reducer = ""
    if reducer in _OPERATIONS:
        result = _reduced(graph, reducer, values[0], axes)
        if is_identity(reducer, starts[0]):
            return [result]
        return [nodes.elementwise(graph, _COMBINING[reducer], result, starts[0])]
    orderly = count == 2 and len(axes) == 1 and not may_be_empty(values[0], axes)
    if orderly and is_counting(graph, values[1], axes[0]):
        order = extreme_and_place_of(region.block)
        least = "maximum" if order == "max" else "minimum"
        if order and is_identity(least, starts[0]) and starts[1].scalar == 0:
            return _extreme_and_index(graph, order, values, axes[0])
    return reduce_by_region(graph, region, values, starts, axes)


def _reduced(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """Return the reduction along some dimensions; sums of small floats are of wider ones."""
    if all(value.shape[axis] == 1 for axis in axes):
        return nodes.squeeze(graph, value, axes)
    value = graph.expand(value)
    shape = shape_without(value.shape, axes)
    fact = Reduction(reducer, graph.reference(value), value.shape, tuple(axes))
    wide = value
    if value.dtype.name in _NARROW and reducer in ("add", "multiply"):
        wide = nodes.cast(graph, value, np.float32)
    vector = graph.vector(axes)
    made = graph.node(_OPERATIONS[reducer], [wide, vector], shape=shape, keepdims=0)
    result = nodes.cast(graph, made, value.dtype)
    graph.remember(result, fact)
    return result


def _extreme_and_index(
    graph: Graph, order: str, values: Sequence[Value], axis: int
) -> Sequence[Value]:
    """Return the first greatest or least number, and where it is; or the first NaN."""
    value, counting = graph.expand(values[0]), values[1]
    where = _arg(graph, "ArgMax" if order == "max" else "ArgMin", value, axis)
    if value.is_float:
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


RULES = {"stablehlo.reduce": Rule(_reduce, ("dimensions",), expand=False)}
