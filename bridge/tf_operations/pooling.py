"""Reductions of windows by pools, where TensorFlow's compute the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops import windows
from bridge.core_ops.regions import reducer_of
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.core_ops.windows import WindowSum, count_windows
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim, product
from xla_call_module.stablehlo.attributes import comparison_direction

_RANK = 4
Row = tuple[int, int, int, int]


def pooled(graph: TensorGraph, reducer: str, value: Value, rows: Sequence[Row]) -> Value | None:
    """Return the reduction of windows of images by a pool; None where it would differ.

    MaxPool passes over NaN, and takes the lowest finite number for -inf: it is used behind a Relu,
    where only NaN is left to be looked for.
    """
    is_pool = reducer == "maximum" and value.rank == _RANK
    if not is_pool or not _may_pool(graph, value):
        return None
    if rows[0] != (1, 1, 0, 0) or rows[3] != (1, 1, 0, 0) or not _fits(rows, value):
        return None
    value = graph.expand(value)
    most = _pool(graph, "MaxPool", value, rows)
    if not graph.exact:
        return most
    if any(low or high for *_, low, high in rows):  # AvgPool has no such padding
        is_nan = nodes.cast(graph, nodes.elementwise(graph, "IsNaN", value), np.float32)
        any_nan = _pool(graph, "MaxPool", graph.expand(is_nan), rows)
        found = nodes.elementwise(graph, "Greater", any_nan, 0)
    else:  # of what is not negative a sum is NaN only where an element is
        mean = _pool(graph, "AvgPool", value, rows)
        found = nodes.elementwise(graph, "IsNaN", mean)
    return nodes.where(graph, found, np.nan, most)


def _may_pool(graph: TensorGraph, value: Value) -> bool:
    """Return whether the greatest elements are those of a pool, but for NaN."""
    source = graph.producer(value)
    is_rectified = source is not None and source.op_type == "Relu"
    return is_rectified or (not graph.exact and value.dtype == np.float32)


def fuse_mean_of_windows(graph: TensorGraph, dividend: Value, divisor: Value) -> Value | None:
    """Return AvgPool for sums of windows by how many elements they have; None otherwise."""
    fact = graph.recall(dividend.name) if dividend.name else None
    if not isinstance(fact, WindowSum) or divisor.scalar is None or not dividend.is_expanded:
        return None
    rows, value = fact.rows, fact.value
    is_image = value.rank == _RANK and value.dtype.kind != "c"
    if not is_image or rows[0] != (1, 1, 0, 0) or rows[3] != (1, 1, 0, 0):
        return None
    is_padded = any(low or high for *_, low, high in rows)
    if is_padded or divisor.scalar != math.prod(size for size, *_ in rows):
        return None
    return _pool(graph, "AvgPool", graph.expand(value), rows) if _fits(rows, value) else None


def _fits(rows: Sequence[Row], value: Value) -> bool:
    """Return whether every window has an element, and there is a window."""
    return all(
        min(low, high) >= 0 and max(low, high) < size and 0 not in (dim, _windows(row, dim))
        for row, dim in zip(rows, value.shape, strict=True)
        for size, _, low, high in [row]
    )


def _windows(row: Row, dim: Dim) -> Dim:
    size, stride, low, high = row
    return count_windows(dim + low + high, size, stride)


def _pool(graph: TensorGraph, op_type: str, value: Value, rows: Sequence[Row]) -> Value:
    shape = [_windows(row, dim) for row, dim in zip(rows, value.shape, strict=True)]
    return graph.node(op_type, [value], shape=shape, **_moves(rows))


def _moves(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the attributes of a pool."""
    sizes, strides, low, high = (list(numbers) for numbers in zip(*rows, strict=True))
    moves: dict[str, Any] = {"ksize": sizes, "strides": strides, "padding": "VALID"}
    if any(low) or any(high):
        pads = [number for pair in zip(low, high, strict=True) for number in pair]
        moves |= {"padding": "EXPLICIT", "explicit_paddings": pads}
    return moves


def _select_and_scatter(graph: TensorGraph, op: Operation) -> Value:
    """Return MaxPoolGrad of images without NaN behind a Relu, and the general form of others."""
    value, _, start = op.operands
    rows = _pool_rows(op) if start.scalar == 0 and _is_pool_gradient(graph, op) else None
    if rows is None:
        return _general(graph, op)
    if not graph.exact:
        return _pool_gradient(graph, op, rows)
    flat = graph.expand(nodes.reshape(graph, value, [product(value.shape)]))
    is_nan = graph.expand(nodes.elementwise(graph, "IsNaN", flat))
    found = graph.node("Any", [is_nan, graph.vector([0])], shape=(), keepdims=0)
    general, fast = graph.body(), graph.body()
    general.add_result(_general(general, op))
    fast.add_result(_pool_gradient(fast, op, rows))
    kinds = [(value.shape, value.dtype)]
    return graph.nodes_of("If", [found], kinds, then_branch=general, else_branch=fast)[0]


def _pool_gradient(graph: TensorGraph, op: Operation, rows: Sequence[Row]) -> Value:
    value, source, _ = op.operands
    inputs = [value, _pool(graph, "MaxPool", value, rows), source]
    return graph.node("MaxPoolGrad", inputs, shape=value.shape, **_moves(rows))


def _general(graph: TensorGraph, op: Operation) -> Value:
    made = windows.RULES["stablehlo.select_and_scatter"].emit(graph, op)
    assert isinstance(made, Value), "it has one result"
    return made


def _is_pool_gradient(graph: TensorGraph, op: Operation) -> bool:
    """Return whether it adds the cotangent of a maximum to the first greatest element."""
    value, (select, scatter) = op.operands[0], op.regions
    compare, *others = (view.operation for view in select.block)
    is_greatest = (
        len(others) == 1
        and compare.name == "stablehlo.compare"
        and comparison_direction(compare) == "GE"
        and list(compare.operands) == list(select.block.arguments)
    )
    may_pool = value.dtype == np.float32 and _may_pool(graph, value)
    return is_greatest and may_pool and reducer_of(scatter) == "add"


def _pool_rows(op: Operation) -> list[Row] | None:
    """Return the windows of an image; None of anything else."""
    value, ones = op.operands[0], (1,) * op.operands[0].rank
    sizes, strides = op.integers("window_dimensions", ones), op.integers("window_strides", ones)
    rows = list(zip(sizes, strides, *op.padding(value.rank), strict=True))
    is_image = value.rank == _RANK and rows[0] == rows[3] == (1, 1, 0, 0)
    return rows if is_image and _fits(rows, value) else None


RULES = {
    "stablehlo.select_and_scatter": Rule(
        _select_and_scatter, ("padding", "window_dimensions", "window_strides")
    ),
}
