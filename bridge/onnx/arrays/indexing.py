"""The places of slices in an array, which gathers read and scatters write.

StableHLO has one form for both: vectors of start indices, the dimensions of the array that they are
along, and which dimensions of the slices are those of the array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.core.size_polynomials import Dim, Shape, is_static, numbers_of
from bridge.onnx.graph import nodes
from bridge.onnx.graph.folding import MAX_BYTES
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value, constant_array, of_array

__all__ = ["Places", "add_offsets", "clamp", "of_gather", "of_scatter", "start_vectors", "to_int64"]


@dataclass(frozen=True, slots=True)
class Places:
    """The dimension numbers by which vectors of start indices say where slices lie.

    Attributes:
        mapped: for each component of a vector the dimension of the array that it is along.
        batching: the dimensions of the array in which a slice has the place of its vector.
        index_batching: the dimensions of the indices that say that place.
        dropped: the dimensions of the array, of size 1 in a slice, that slices are without.
        window: the places of the other dimensions of a slice in the array of all slices.
        vector_axis: the dimension of the indices along which a vector lies; their rank for scalars.
    """

    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    dropped: tuple[int, ...]
    window: tuple[int, ...]
    vector_axis: int

    def positions(self, rank: int, count: int) -> dict[int, int]:
        """Return the place of each dimension of an array in the array of all slices.

        Args:
            rank: the rank of the array.
            count: the number of dimensions that tell slices apart.
        """
        slices = dict(zip(self.window_axes(rank), self.window, strict=True))
        others = self.other_axes(count)
        leading = [others[number] for number in self.leading]
        return slices | dict(zip(self.batching, leading, strict=True))

    def window_axes(self, rank: int) -> list[int]:
        """The dimensions of an array of some rank that slices have."""
        gone = (*self.dropped, *self.batching)
        return [axis for axis in range(rank) if axis not in gone]

    def other_axes(self, count: int) -> list[int]:
        """The dimensions of the array of all slices that tell them apart."""
        return [axis for axis in range(count + len(self.window)) if axis not in self.window]

    def batch_shape(self, indices: Value) -> Shape:
        """Return the number of slices along each of these dimensions."""
        return tuple(dim for axis, dim in enumerate(indices.shape) if axis != self.vector_axis)

    @property
    def leading(self) -> tuple[int, ...]:
        """The dimensions that are `index_batching`, among those that tell slices apart."""
        return tuple(axis - (axis > self.vector_axis) for axis in self.index_batching)


def of_gather(op: Operation) -> Places:
    """The places that the attribute of a gather says."""
    numbers = op.dimension_numbers()
    return Places(
        mapped=tuple(numbers.start_index_map),
        batching=tuple(numbers.operand_batching_dims),
        index_batching=tuple(numbers.start_indices_batching_dims),
        dropped=tuple(numbers.collapsed_slice_dims),
        window=tuple(numbers.offset_dims),
        vector_axis=numbers.index_vector_dim,
    )


def of_scatter(op: Operation) -> Places:
    """The places that the attribute of a scatter says."""
    numbers = op.dimension_numbers()
    return Places(
        mapped=tuple(numbers.scattered_dims_to_operand_dims),
        batching=tuple(numbers.input_batching_dims),
        index_batching=tuple(numbers.scatter_indices_batching_dims),
        dropped=tuple(numbers.inserted_window_dims),
        window=tuple(numbers.update_window_dims),
        vector_axis=numbers.index_vector_dim,
    )


def start_vectors(graph: Graph, indices: Value, places: Places) -> Value:
    """The start indices as int64, with the vectors along the last dimension."""
    vectors = to_int64(graph, indices)
    if places.vector_axis == vectors.rank:
        return nodes.expand_dims(graph, vectors, [vectors.rank])
    others = [axis for axis in range(vectors.rank) if axis != places.vector_axis]
    return nodes.transpose(graph, vectors, [*others, places.vector_axis])


def to_int64(graph: Graph, indices: Value) -> Value:
    """Return indices as int64; those of uint64 that are too large for it stay large."""
    if indices.dtype == np.uint64:
        indices = nodes.elementwise(graph, "Min", indices, np.iinfo(np.int64).max)
    return nodes.cast(graph, indices, np.int64)


def clamp(graph: Graph, starts: Value, limits: Sequence[Dim]) -> Value:
    """Return start indices between 0 and the limit of each component, along the last axis."""
    if starts.array is not None and is_static(limits):
        array = np.clip(starts.array, 0, np.array(limits, np.int64))
        shape = numbers_of(starts.shape)
        if math.prod(shape) * array.itemsize > MAX_BYTES:
            return constant_array(array).broadcast_to(shape)
        return of_array(np.broadcast_to(array, shape))
    raised = nodes.elementwise(graph, "Max", starts, 0)
    return nodes.elementwise(graph, "Min", raised, graph.vector(limits))


def add_offsets(graph: Graph, starts: Value, extents: Sequence[Dim]) -> Value:
    """The indices of all elements of slices, given where each slice begins.

    Args:
        graph: the graph that the operations are added to.
        starts: vectors of int64 along the last dimension.
        extents: the size of a slice along each component; those of 1 add no dimension.
    """
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
