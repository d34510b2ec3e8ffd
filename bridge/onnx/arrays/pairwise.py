"""Sorts by a comparator of any kind: each element's place is how many others come before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core.size_polynomials import Dim
from bridge.onnx.arrays.indexing import count_up
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value

__all__ = ["pairwise_order"]

# All elements are compared with all others, so that many are a hundred million comparisons.
_MOST_ELEMENTS = 10_000


def pairwise_order(graph: Graph, op: Operation, axis: int) -> Value:
    """For each place of a stable sort along a dimension the index of the element that goes there.

    Raises:
        UnsupportedError: there are too many elements to compare all of them.
    """
    values = [graph.whole(value) for value in op.operands]
    shape, rank = values[0].shape, values[0].rank
    size = shape[axis]
    if isinstance(size, int) and size > _MOST_ELEMENTS:
        op.refuse(
            f"its comparator is not the order of one operand after another, and {size} elements "
            "are too many to compare each with each",
            "sort by keys, as jax.lax.sort does",
        )
    square = (*shape[:axis], size, size, *shape[axis + 1 :])
    after = [number for number in range(rank + 1) if number != axis]  # the other one comes first
    before = [number for number in range(rank + 1) if number != axis + 1]
    own = [graph.whole(nodes.place(graph, value, after, square)) for value in values]
    other = [graph.whole(nodes.place(graph, value, before, square)) for value in values]
    first = _compare(graph, op, other, own)
    tie = nodes.elementwise(graph, "Equal", first, _compare(graph, op, own, other))
    indices = _indices(graph, size, axis, square)
    earlier, later = (
        nodes.elementwise(graph, name, *indices, dtype=bool) for name in ("Less", "Greater")
    )
    # XLA, and StableHLO's interpreter, turn around what a comparator says to be before each other.
    precedes = nodes.where(graph, tie, nodes.where(graph, first, later, earlier), first)
    places = _count(graph, precedes, axis, shape)
    ends = [(shape, np.dtype(np.int64))] * 2
    return graph.nodes_of("TopK", [places, graph.size(size)], ends, axis=axis, largest=0)[1]


def _compare(graph: Graph, op: Operation, left: Sequence[Value], right: Sequence[Value]) -> Value:
    pairs = [value for pair in zip(left, right, strict=True) for value in pair]
    (found,) = op.regions[0].apply(graph, pairs)
    return found.seen_as(left[0].shape)


def _indices(graph: Graph, size: Dim, axis: int, square: tuple[Dim, ...]) -> list[Value]:
    """Of each pair the index of the other element, and of the own one."""
    line = count_up(graph, size)
    return [nodes.place(graph, line, [number], square) for number in (axis, axis + 1)]


def _count(graph: Graph, flags: Value, axis: int, shape: tuple[Dim, ...]) -> Value:
    """How many others come before each element."""
    numbers = graph.whole(nodes.cast(graph, flags, np.float32))  # exact, up to 2**24 of them
    total = graph.node("ReduceSum", [numbers, nodes.integers([axis])], shape=shape, keepdims=0)
    return nodes.cast(graph, total, np.int64)
