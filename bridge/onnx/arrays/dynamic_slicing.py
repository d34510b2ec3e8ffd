"""Slices at places that only a run knows, read and written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core.size_polynomials import Dim, is_static, maximum, minimum
from bridge.onnx.arrays.indexing import clamp
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph, Row, Written
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.size_arithmetic import may_wrap
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value, contents_of, of_sizes

__all__ = ["RULES", "read_slice"]


def _dynamic_slice(graph: Graph, op: Operation) -> Value:
    value, *starts = op.operands
    sizes = op.integers("slice_sizes")
    axes = [axis for axis in range(value.rank) if value.shape[axis] != sizes[axis]]
    if not axes:
        return value
    limits = [value.shape[axis] - sizes[axis] for axis in axes]
    vector = _within(graph, [starts[axis] for axis in axes], limits)
    return read_slice(graph, value, axes, vector, [sizes[axis] for axis in axes])


def _within(graph: Graph, starts: Sequence[Value], limits: Sequence[Dim]) -> Value:
    """Scalars of any integers as one vector of int64, between 0 and a limit for each."""
    known = [_number_of(start) for start in starts]
    dims = [dim for dim in known if dim is not None]
    if len(dims) == len(known):
        inside = [minimum(maximum(d, 0), limit) for d, limit in zip(dims, limits, strict=True)]
        return of_sizes(tuple(inside), np.dtype(np.int64), (len(inside),))
    return clamp(graph, _vector(graph, starts), limits)


def _number_of(scalar: Value) -> Dim | None:
    """What a scalar is, if it is known but for sizes and rounds of loops."""
    contents = contents_of(scalar)
    return None if contents is None or may_wrap(contents[0], scalar.dtype) else contents[0]


def read_slice(
    graph: Graph, value: Value, axes: Sequence[int], starts: Value, sizes: Sequence[Dim]
) -> Value:
    """One slice.

    Args:
        graph: where it is put.
        value: what it is a slice of.
        axes: along which it is smaller.
        starts: where it begins along each of them, a vector of int64 that is in bounds.
        sizes: how large it is along each of them.
    """
    known = contents_of(starts)
    shape = list(value.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    if known is not None and list(axes) == [0] and list(sizes) == [1]:
        return nodes.reshape(graph, _read_row(graph, value, known[0]), shape)
    if known is not None:
        limits = [start + size for start, size in zip(known, sizes, strict=True)]
        return nodes.slice_(graph, value, known, limits, [1] * len(sizes), axes)
    ends = nodes.elementwise(graph, "Add", starts, graph.vector(sizes))
    inputs = [graph.whole(value), graph.whole(starts), graph.whole(ends), nodes.integers(axes)]
    return graph.node("Slice", inputs, shape=shape)


def _read_row(graph: Graph, value: Value, index: Dim) -> Value:
    value = graph.whole(value)
    row = nodes.gather(graph, value, of_sizes((index,), np.dtype(np.int64), ()), 0)
    graph.rows[row.name] = Row(value, index)
    return row


def _vector(graph: Graph, scalars: Sequence[Value]) -> Value:
    """Scalars of any integers as one vector of int64; too large ones stay large."""
    parts = []
    for scalar in scalars:
        if scalar.dtype == np.uint64:
            greatest = nodes.number_like(scalar, np.iinfo(np.int64).max)
            scalar = nodes.elementwise(graph, "Min", scalar, greatest)
        parts.append(nodes.reshape(graph, nodes.cast(graph, scalar, np.int64), (1,)))
    return nodes.concat(graph, parts, 0)


def _real_dynamic_slice(graph: Graph, op: Operation) -> Value:
    value, starts, ends, _ = op.operands
    steps = op.sizes(graph, 3)
    first, last = contents_of(starts), contents_of(ends)
    if first is not None and last is not None and is_static(steps):
        strides = [int(str(step)) for step in steps]
        others = value.shape[1:]
        is_of_rows = (first[1:], last[1:]) == ((0,) * len(others), others)
        if is_of_rows and all(stride == 1 for stride in strides):
            size = last[0] - first[0]
            vector = of_sizes(first[:1], np.dtype(np.int64), (1,))
            return read_slice(graph, value, [0], vector, [size])
        return nodes.slice_(graph, value, first, last, strides)
    bounds = [nodes.cast(graph, bound, np.int64) for bound in (starts, ends)]
    axes = nodes.integers(range(value.rank))
    inputs = [graph.whole(part) for part in (value, *bounds)]
    return graph.node("Slice", [*inputs, axes, graph.vector(steps)], shape=op.shape_like())


def _dynamic_update_slice(graph: Graph, op: Operation) -> Value:
    value, update, *starts = op.operands
    pairs = zip(value.shape, update.shape, strict=True)
    axes = [axis for axis, (whole, part) in enumerate(pairs) if whole != part]
    if not axes:
        return update
    limits = [value.shape[axis] - update.shape[axis] for axis in axes]
    vector = _within(graph, [starts[axis] for axis in axes], limits)
    written = _write(graph, value, update, list(zip(axes, _parts(graph, vector), strict=True)))
    places: list[Dim | None] = [0] * value.rank
    for axis in axes:
        places[axis] = _number_of(starts[axis])
    if written.name:
        graph.written[written.name] = Written(value, update, tuple(places))
    return written


def _parts(graph: Graph, vector: Value) -> list[Value]:
    """Each element of a vector as a vector."""
    known = contents_of(vector)
    if known is not None:
        return [graph.vector([dim]) for dim in known]
    whole = graph.whole(vector)
    count = int(str(vector.shape[0]))
    return [nodes.slice_(graph, whole, [n], [n + 1], [1], [0]) for n in range(count)]


def _write(graph: Graph, value: Value, update: Value, places: Sequence[tuple[int, Value]]) -> Value:
    """The value with a block that is smaller along some axes and begins somewhere in each."""
    (axis, start), *others = places
    size = update.shape[axis]
    if others:
        around = graph.whole(read_slice(graph, value, [axis], start, [size]))
        update = _write(graph, around, update, others)
    update = graph.whole(update)
    if axis == 0 and size == 1:  # one row, which a runtime can write where it is
        index = graph.node("Unsqueeze", [start, nodes.integers([1])], shape=(1, 1))
        return graph.node("ScatterND", [value, index, update], shape=value.shape)
    end = graph.node("Add", [start, graph.vector([size])], shape=(1,))
    zero, total = graph.vector([0]), graph.vector([value.shape[axis]])
    before = _between(graph, value, axis, zero, start)
    after = _between(graph, value, axis, end, total)
    return graph.node("Concat", [before, update, after], shape=value.shape, axis=axis)


def _between(graph: Graph, value: Value, axis: int, start: Value, end: Value) -> Value:
    shape = [None if number == axis else dim for number, dim in enumerate(value.shape)]
    return graph.node("Slice", [value, start, end, nodes.integers([axis])], shape=shape)


RULES = {
    "stablehlo.dynamic_slice": Rule(_dynamic_slice, ("slice_sizes",)),
    "stablehlo.dynamic_update_slice": Rule(_dynamic_update_slice),
    "stablehlo.real_dynamic_slice": Rule(_real_dynamic_slice, whole=False),
}
