"""Reductions along a dynamic dimension by a region of any kind, which are loops.

Those of sums are ONNX's CumSum (`bridge.onnx.windows.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core.size_polynomials import Dim, floordiv
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Region
from bridge.onnx.graph.values import Value, of_sizes

__all__ = ["combine_neighbours", "reduce_so_far"]


def reduce_so_far(
    graph: Graph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axis: int,
    *,
    reverse: bool,
) -> list[Value]:
    """Return the reduction of all elements up to each, or in reverse, from each on.

    Args:
        graph: the graph that the operations are added to.
        region: a function of two elements of each array.
        values: the arrays.
        starts: the scalars that the reductions begin with.
        axis: the dimension along which it goes.
        reverse: whether it begins with the last element.
    """
    rank = values[0].rank
    order = [axis, *(number for number in range(rank) if number != axis)]
    size, *rest = (values[0].shape[number] for number in order)
    shape = tuple(rest) or (1,)  # ONNX's reference evaluator puts no scalars together
    lines = []
    for value in values:
        line = nodes.transpose(graph, graph.expand(value), order)
        line = graph.expand(nodes.reshape(graph, line, (size, *shape)))
        lines.append(nodes.reverse(graph, line, [0]) if reverse else line)

    def step(body: Graph, number: Value, before: list[Value]) -> list[Value]:
        rows = [nodes.gather(body, line, number, 0) for line in lines]
        combined = region.apply(body, [*before, *rows])
        return [body.expand(value.broadcast_to(shape)) for value in combined] * 2

    inits = [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    made = nodes.loop(graph, size, inits, step, row_shape=shape)
    results = []
    for reduced in made[len(values) :]:
        ordered = nodes.reverse(graph, reduced, [0]) if reverse else reduced
        ordered = nodes.reshape(graph, ordered, (size, *rest))
        results.append(nodes.transpose(graph, ordered, [order.index(a) for a in range(rank)]))
    return results


def combine_neighbours(
    graph: Graph,
    region: Region,
    values: Sequence[Value],
    axis: int,
    size: Dim,
    stride: int,
    dilation: int,
) -> list[Value]:
    """Return the reduction of each window along a dimension by a region, from the first element on.

    Args:
        graph: the graph that the operations are added to.
        region: a function of two elements of each array.
        values: the arrays.
        axis: the dimension along which windows move.
        size: the number of elements in a window, one or more.
        stride: from one window to the next.
        dilation: the distance between elements in a window.
    """
    count = floordiv(values[0].shape[axis] - 1 - (size - 1) * dilation, stride) + 1
    reach = (count - 1) * stride + 1
    firsts = [nodes.slice_(graph, v, [0], [reach], [stride], axes=[axis]) for v in values]
    length = graph.expand(of_sizes((reach,), np.dtype(np.int64), (1,)))
    lines = [graph.expand(value) for value in values]
    shape = firsts[0].shape

    def step(body: Graph, number: Value, before: list[Value]) -> list[Value]:
        start = nodes.elementwise(body, "Mul", nodes.elementwise(body, "Add", number, 1), dilation)
        start = body.expand(nodes.expand_dims(body, start, [0]))
        end = nodes.elementwise(body, "Add", start, length)
        moves = [graph.vector([axis]), graph.vector([stride])]
        parts = [body.node("Slice", [line, start, end, *moves], shape=shape) for line in lines]
        return [reduced.broadcast_to(shape) for reduced in region.apply(body, [*before, *parts])]

    return nodes.loop(graph, size - 1, firsts, step)
