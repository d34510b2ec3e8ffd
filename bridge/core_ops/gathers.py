"""Slices of an array at many places: Gather where it is whole rows, GatherND elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.slicing import add_offsets, clamp, read_slice, start_vectors
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim, Shape
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces


def _gather(graph: TensorGraph, op: Operation) -> Value:
    return _slices(graph, op, op.integers("slice_sizes"))


def _dynamic_gather(graph: TensorGraph, op: Operation) -> Value:
    places, sizes = SlicePlaces.of_gather(op), list(op.sizes(graph, 2))
    for axis in (*places.dropped, *places.batching):
        sizes[axis] = 1
    for axis, at in zip(places.window_axes(len(sizes)), places.window, strict=True):
        known = op.result.shape[at]
        sizes[axis] = sizes[axis] if known is None else known
    return _slices(graph, op, sizes)


def _slices(graph: TensorGraph, op: Operation, sizes: Sequence[Dim]) -> Value:
    """The slices, of which one that would lie beyond the array is moved into it."""
    (value, indices), places = op.operands[:2], SlicePlaces.of_gather(op)
    batch = tuple(indices.shape[axis] for axis in places.index_axes(indices.rank))
    shape = _shape_of_all(places, batch, sizes)
    positions = places.positions(value.rank, len(shape))
    components = [k for k, axis in enumerate(places.mapped) if value.shape[axis] != sizes[axis]]
    moving = [places.mapped[k] for k in components]
    value, axes = _cut(graph, value, sizes, places, moving)
    if not moving:
        return nodes.broadcast_in_dim(graph, value, [positions[axis] for axis in axes], shape)
    starts = start_vectors(graph, indices, places)
    if len(components) < len(places.mapped):
        starts = nodes.gather(graph, starts, graph.vector(components), starts.rank - 1)
    limits = [value.shape[axes.index(axis)] - sizes[axis] for axis in moving]
    starts = clamp(graph, starts, limits)
    extents = [sizes[axis] for axis in moving]
    if not batch:
        within = [axes.index(axis) for axis in moving]
        return nodes.reshape(graph, read_slice(graph, value, within, starts, extents), shape)
    if extents == [1] and not places.batching:
        slices, axes = _rows(graph, value, starts, axes, moving[0])
    else:
        slices, axes = _elements(graph, value, starts, axes, places, moving, extents)
    others = iter(places.other_axes(len(shape)))
    leading = [positions[axis] for axis in places.batching]
    taken = [*leading, *(axis for axis in others if axis not in leading)]
    targets = [taken[-1 - axis] if axis < 0 else positions[axis] for axis in axes]
    return nodes.broadcast_in_dim(graph, slices, targets, shape)


def _shape_of_all(places: SlicePlaces, batch: Shape, sizes: Sequence[Dim]) -> Shape:
    """The shape of the result."""
    window = iter([sizes[axis] for axis in places.window_axes(len(sizes))])
    others = iter(batch)
    rank = len(batch) + len(places.window)
    return tuple(next(window) if axis in places.window else next(others) for axis in range(rank))


def _cut(
    graph: TensorGraph,
    value: Value,
    sizes: Sequence[Dim],
    places: SlicePlaces,
    moving: Sequence[int],
) -> tuple[Value, list[int]]:
    """The value without what no slice has where all of them begin at 0."""
    whole = (*moving, *places.batching)
    axes = [axis for axis in range(value.rank) if axis not in whole]
    limits = [sizes[axis] for axis in axes]
    value = nodes.slice_(graph, value, [0] * len(axes), limits, [1] * len(axes), axes)
    dropped = [axis for axis in places.dropped if axis not in moving]
    kept = [axis for axis in range(value.rank) if axis not in dropped]
    return nodes.squeeze(graph, value, dropped), kept


# The dimensions that tell slices apart are -1, -2, … in what follows.
def _rows(
    graph: TensorGraph, value: Value, starts: Value, axes: Sequence[int], axis: int
) -> tuple[Value, list[int]]:
    """Return slices of one element along one dimension, and of all along the others."""
    at = axes.index(axis)
    index = nodes.squeeze(graph, starts, [starts.rank - 1])
    rows = nodes.gather(graph, value, index, at)
    return rows, [*axes[:at], *_apart(index.rank), *axes[at + 1 :]]


def _elements(
    graph: TensorGraph,
    value: Value,
    starts: Value,
    axes: Sequence[int],
    places: SlicePlaces,
    moving: Sequence[int],
    extents: Sequence[Dim],
) -> tuple[Value, list[int]]:
    """Return slices that begin anywhere in several dimensions; the rest as `_rows`."""
    rest = [axis for axis in axes if axis not in moving and axis not in places.batching]
    order = [*places.batching, *moving, *rest]
    value = nodes.transpose(graph, graph.expand(value), [axes.index(axis) for axis in order])
    count = starts.rank - 1
    others = [axis for axis in range(count) if axis not in places.leading]
    starts = nodes.transpose(graph, starts, [*places.leading, *others, count])
    starts = graph.expand(add_offsets(graph, starts, extents))
    shape = (*starts.shape[:-1], *value.shape[len(places.batching) + len(moving) :])
    slices = graph.node("GatherND", [value, starts], shape=shape, batch_dims=len(places.batching))
    wide = [axis for axis, extent in zip(moving, extents, strict=True) if extent != 1]
    return slices, [*_apart(count), *wide, *rest]


def _apart(count: int) -> range:
    return range(-1, -1 - count, -1)


def _torch_index_select(graph: TensorGraph, op: Operation) -> Value:
    """Return slices along one dimension, an operation of older modules."""
    (value, indices), axis = op.operands, op.integer("dim")
    batches = op.integer("batch_dims")
    order = [*range(batches), axis, *(n for n in range(batches, value.rank) if n != axis)]
    turned = graph.expand(nodes.transpose(graph, value, order))
    column = nodes.expand_dims(graph, nodes.cast(graph, indices, np.int64), [indices.rank])
    inside = graph.expand(clamp(graph, column, [value.shape[axis] - 1]))
    shape = (*indices.shape, *turned.shape[batches + 1 :])
    selected = graph.node("GatherND", [turned, inside], shape=shape, batch_dims=batches)
    before, new = axis - batches, indices.rank - batches
    first = range(indices.rank, indices.rank + before)
    rest = range(indices.rank + before, selected.rank)
    middle = range(batches, batches + new)
    return nodes.transpose(graph, selected, [*range(batches), *first, *middle, *rest])


_READ = ("dimension_numbers", "indices_are_sorted", "slice_sizes")
RULES = {
    # A dynamic gather may repeat its sizes as an attribute, which says nothing else.
    "stablehlo.dynamic_gather": Rule(_dynamic_gather, _READ),
    "stablehlo.gather": Rule(_gather, _READ),
    "stablehlo.torch_index_select": Rule(_torch_index_select, ("batch_dims", "dim")),
}
