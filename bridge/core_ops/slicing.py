"""Parts of arrays, where they begin, and arrays with something around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.folding import MAX_BYTES
from bridge.graphs.size_arithmetic import may_wrap
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, constant_array, contents_of, of_array, of_size, of_sizes
from xla_call_module.size_polynomials import Dim, is_static, maximum, minimum, numbers_of, product
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces


@dataclass(frozen=True, slots=True)
class Written:
    """The fact that a value is an array of which a part has been written.

    Attributes:
        array: the array before.
        part: the values that were written.
        starts: the start of the part along each dimension; None where it is computed.
    """

    array: Value
    part: Value
    starts: tuple[Dim | None, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The fact that a value is one row of an array.

    Attributes:
        array: the array that was read.
        index: the index along the first dimension.
    """

    array: Value
    index: Dim


def start_vectors(graph: TensorGraph, indices: Value, places: SlicePlaces) -> Value:
    """The start indices as int64, with the vectors along the last dimension."""
    vectors = _to_int64(graph, indices)
    if places.vector_axis == vectors.rank:
        return nodes.expand_dims(graph, vectors, [vectors.rank])
    order = [*places.index_axes(vectors.rank), places.vector_axis]
    return nodes.transpose(graph, vectors, order)


def _to_int64(graph: TensorGraph, indices: Value) -> Value:
    """Return indices as int64; those of uint64 that are too large for it stay large."""
    if indices.dtype == np.uint64:
        indices = nodes.elementwise(graph, "Min", indices, np.iinfo(np.int64).max)
    return nodes.cast(graph, indices, np.int64)


def clamp(graph: TensorGraph, starts: Value, limits: Sequence[Dim]) -> Value:
    """Return start indices between 0 and the limit of each component, along the last axis."""
    if starts.array is not None and is_static(limits):
        array = np.clip(starts.array, 0, np.array(limits, np.int64))
        shape = numbers_of(starts.shape)
        if math.prod(shape) * array.itemsize > MAX_BYTES:
            return constant_array(array).broadcast_to(shape)
        return of_array(np.broadcast_to(array, shape))
    raised = nodes.elementwise(graph, "Max", starts, 0)
    return nodes.elementwise(graph, "Min", raised, graph.vector(limits))


def add_offsets(graph: TensorGraph, starts: Value, extents: Sequence[Dim]) -> Value:
    """The indices of all elements of slices, given where each slice begins."""
    wide = [number for number, extent in enumerate(extents) if extent != 1]
    if not wide:
        return starts
    count = starts.rank - 1
    axes = range(count, count + len(wide))
    starts = nodes.expand_dims(graph, starts, list(axes))
    for axis, number in zip(axes, wide, strict=True):
        column = nodes.expand_dims(graph, nodes.count_up(graph, extents[number]), [1])
        unit = graph.vector([int(number == other) for other in range(len(extents))])
        offsets = nodes.elementwise(graph, "Mul", column, unit)
        shape: list[Dim] = [1] * starts.rank
        shape[axis], shape[-1] = extents[number], len(extents)
        placed = nodes.broadcast_in_dim(graph, offsets, [axis, starts.rank - 1], shape)
        starts = nodes.elementwise(graph, "Add", starts, placed)
    return starts


def _slice(graph: TensorGraph, op: Operation) -> Value:
    (value,) = op.operands
    starts, limits = op.integers("start_indices"), op.integers("limit_indices")
    strides = op.integers("strides")
    contents = contents_of(value) if value.sizes is not None and value.rank == 1 else None
    if contents is not None:
        sizes = contents[starts[0] : limits[0] : strides[0]]
        return of_sizes(sizes, value.dtype, (len(sizes),))
    return nodes.slice_(graph, value, starts, limits, strides)


def _reverse(graph: TensorGraph, op: Operation) -> Value:
    return nodes.reverse(graph, op.operands[0], op.integers("dimensions"))


def _pad(graph: TensorGraph, op: Operation) -> Value:
    low, high = op.integers("edge_padding_low"), op.integers("edge_padding_high")
    value, filling = op.operands
    return pad(graph, value, filling, low, high, op.integers("interior_padding"))


def _dynamic_pad(graph: TensorGraph, op: Operation) -> Value:
    value, filling = op.operands[:2]
    low, high, interior = (op.sizes(graph, index) for index in (2, 3, 4))
    if not is_static(interior):
        return _pad_by_indices(graph, value, filling, low, high, interior)
    return pad(graph, value, filling, low, high, numbers_of(interior))


def _pad_by_indices(
    graph: TensorGraph,
    value: Value,
    filling: Value,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[Dim],
) -> Value:
    """Return what `pad` does, by lookups, for an interior padding that is dynamic."""
    do = partial(nodes.elementwise, graph)
    for axis, (first, last, between) in enumerate(zip(low, high, interior, strict=True)):
        old, step = value.shape[axis], between + 1
        new = first + last + old + maximum(old - 1, 0) * between
        if old == 0:
            shape = [new if number == axis else dim for number, dim in enumerate(value.shape)]
            value = graph.expand(filling.broadcast_to(tuple(shape)))
            continue
        first_, step_, old_ = map(of_size, (first, step, old))
        place = do("Sub", nodes.count_up(graph, new), first_)
        index = do("Div", place, step_)
        rest = do("Sub", place, do("Mul", index, step_))
        is_element = do("And", do("Equal", rest, 0), do("GreaterOrEqual", place, 0))
        inside = do("And", is_element, do("Less", index, old_))
        index = do("Max", do("Min", index, do("Sub", old_, 1)), 0)
        value = nodes.gather(graph, value, index, axis)
        placed = nodes.broadcast_in_dim(graph, inside, [axis], value.shape)
        value = graph.expand(nodes.where(graph, placed, value, filling))
    return value


def pad(
    graph: TensorGraph,
    value: Value,
    filling: Value,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[int],
) -> Value:
    """The value with copies of a scalar around and between its elements."""
    value, filling = graph.expand(value), graph.expand(filling)
    for axis, count in enumerate(interior):
        if count:
            value = _spread(graph, value, filling, axis, count)
    before, after = ([_natural(dim) for dim in dims] for dims in (low, high))
    if any(dim != 0 for dim in (*before, *after)):
        limit = graph.max_padded_rank
        rows = value.rank if limit is None or value.rank <= limit else 1
        for start in range(0, value.rank, rows):
            value = _padded(
                graph, value, filling, start, before[start:][:rows], after[start:][:rows]
            )
    starts = [_natural(dim * -1) for dim in low]
    limits = [dim - _natural(last * -1) for dim, last in zip(value.shape, high, strict=True)]
    return nodes.slice_(graph, value, starts, limits, [1] * value.rank)


def _padded(
    graph: TensorGraph,
    value: Value,
    filling: Value,
    start: int,
    before: Sequence[Dim],
    after: Sequence[Dim],
) -> Value:
    """Return the value with scalars around some of its dimensions, as many as there are numbers."""
    if not any(dim != 0 for dim in (*before, *after)):
        return value
    stop = start + len(before)
    ends = [(product(value.shape[:start]), 0, 0)] if start else []
    sizes = list(zip(value.shape[start:stop], before, after, strict=True))
    rest = [(product(value.shape[stop:]), 0, 0)] if stop < value.rank else []
    rows = [*ends, *sizes, *rest]
    shape = [dim + first + last for dim, first, last in rows]
    numbers = graph.vector([row[side] for side in (1, 2) for row in rows])
    flat = nodes.reshape(graph, value, [dim for dim, *_ in rows])
    made = graph.node("Pad", [flat, numbers, filling], shape=shape)
    whole = [dim + first + last for dim, first, last in sizes]
    return nodes.reshape(graph, made, [*value.shape[:start], *whole, *value.shape[stop:]])


def _natural(dim: Dim) -> Dim:
    """The size, or 0 for what is negative."""
    return maximum(dim, 0)


def _spread(graph: TensorGraph, value: Value, filling: Value, axis: int, count: int) -> Value:
    """The value with scalars between its elements: each is given some behind it, the last none."""
    size = value.shape[axis]
    rows = nodes.expand_dims(graph, value, [axis + 1])
    nothing = [0] * rows.rank
    behind = [count if number == axis + 1 else 0 for number in range(rows.rank)]
    rows = pad(graph, rows, filling, nothing, behind, nothing)
    shape = list(value.shape)
    shape[axis] = size * (count + 1)
    long = nodes.reshape(graph, rows, shape)
    limit = maximum(size * (count + 1) - count, 0)
    return nodes.slice_along(graph, long, axis, 0, limit)


def _dynamic_slice(graph: TensorGraph, op: Operation) -> Value:
    value, *starts = op.operands
    sizes = op.integers("slice_sizes")
    axes = [axis for axis in range(value.rank) if value.shape[axis] != sizes[axis]]
    if not axes:
        return value
    limits = [value.shape[axis] - sizes[axis] for axis in axes]
    vector = _within(graph, [starts[axis] for axis in axes], limits)
    return read_slice(graph, value, axes, vector, [sizes[axis] for axis in axes])


def _within(graph: TensorGraph, starts: Sequence[Value], limits: Sequence[Dim]) -> Value:
    """Return integer scalars as one vector of int64, between 0 and a limit for each."""
    known = [_number_of(start) for start in starts]
    dims = [dim for dim in known if dim is not None]
    if len(dims) == len(known):
        inside = [minimum(maximum(d, 0), limit) for d, limit in zip(dims, limits, strict=True)]
        return of_sizes(tuple(inside), np.dtype(np.int64), (len(inside),))
    return clamp(graph, _vector(graph, starts), limits)


def _number_of(scalar: Value) -> Dim | None:
    """Return a scalar as a size, if it is a number, a size or an iteration of a loop."""
    contents = contents_of(scalar)
    return None if contents is None or may_wrap(contents[0], scalar.dtype) else contents[0]


def read_slice(
    graph: TensorGraph, value: Value, axes: Sequence[int], starts: Value, sizes: Sequence[Dim]
) -> Value:
    """Return one slice of a value."""
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
    inputs = [graph.expand(value), graph.expand(starts), graph.expand(ends), graph.vector(axes)]
    return graph.node("Slice", inputs, shape=shape)


def _read_row(graph: TensorGraph, value: Value, index: Dim) -> Value:
    value = graph.expand(value)
    row = nodes.gather(graph, value, of_size(index), 0)
    graph.remember(row, Row(value, index))
    return row


def _vector(graph: TensorGraph, scalars: Sequence[Value]) -> Value:
    """Return integer scalars as one vector of int64; too large ones stay large."""
    parts = [nodes.reshape(graph, _to_int64(graph, scalar), (1,)) for scalar in scalars]
    return nodes.concat(graph, parts, 0)


def _real_dynamic_slice(graph: TensorGraph, op: Operation) -> Value:
    value, starts, ends, _ = op.operands
    steps = op.sizes(graph, 3)
    first, last = contents_of(starts), contents_of(ends)
    if first is not None and last is not None and is_static(steps):
        strides = numbers_of(steps)
        others = value.shape[1:]
        is_of_rows = (first[1:], last[1:]) == ((0,) * len(others), others)
        if is_of_rows and all(stride == 1 for stride in strides):
            size = last[0] - first[0]
            vector = of_sizes(first[:1], np.dtype(np.int64), (1,))
            return read_slice(graph, value, [0], vector, [size])
        return nodes.slice_(graph, value, first, last, strides)
    bounds = [nodes.cast(graph, bound, np.int64) for bound in (starts, ends)]
    axes = graph.vector(range(value.rank))
    inputs = [graph.expand(part) for part in (value, *bounds)]
    return graph.node("Slice", [*inputs, axes, graph.vector(steps)], shape=op.shape_like())


def _dynamic_update_slice(graph: TensorGraph, op: Operation) -> Value:
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
    graph.remember(written, Written(value, update, tuple(places)))
    return written


def _parts(graph: TensorGraph, vector: Value) -> list[Value]:
    """Return each element of a vector as a vector."""
    known = contents_of(vector)
    if known is not None:
        return [graph.vector([dim]) for dim in known]
    whole = graph.expand(vector)
    count = int(str(vector.shape[0]))
    return [nodes.slice_along(graph, whole, 0, n, n + 1) for n in range(count)]


def _write(
    graph: TensorGraph, value: Value, update: Value, places: Sequence[tuple[int, Value]]
) -> Value:
    """The value with a block that is smaller along some axes and begins somewhere in each."""
    (axis, start), *others = places
    size = update.shape[axis]
    if others:
        around = graph.expand(read_slice(graph, value, [axis], start, [size]))
        update = _write(graph, around, update, others)
    update = graph.expand(update)
    if axis == 0 and size == 1:  # one row, which a runtime can write where it is
        index = graph.node("Unsqueeze", [start, graph.vector([1])], shape=(1, 1))
        return graph.node("ScatterND", [value, index, update], shape=value.shape)
    end = graph.node("Add", [start, graph.vector([size])], shape=(1,))
    zero, total = graph.vector([0]), graph.vector([value.shape[axis]])
    before = _between(graph, value, axis, zero, start)
    after = _between(graph, value, axis, end, total)
    return graph.node("Concat", [before, update, after], shape=value.shape, axis=axis)


def _between(graph: TensorGraph, value: Value, axis: int, start: Value, end: Value) -> Value:
    shape = [None if number == axis else dim for number, dim in enumerate(value.shape)]
    return graph.node("Slice", [value, start, end, graph.vector([axis])], shape=shape)


RULES = {
    "stablehlo.dynamic_pad": Rule(_dynamic_pad),
    "stablehlo.dynamic_slice": Rule(_dynamic_slice, ("slice_sizes",)),
    "stablehlo.dynamic_update_slice": Rule(_dynamic_update_slice),
    "stablehlo.pad": Rule(_pad, ("edge_padding_high", "edge_padding_low", "interior_padding")),
    "stablehlo.real_dynamic_slice": Rule(_real_dynamic_slice, expand=False),
    "stablehlo.reverse": Rule(_reverse, ("dimensions",), expand=False),
    "stablehlo.slice": Rule(_slice, ("limit_indices", "start_indices", "strides"), expand=False),
}
