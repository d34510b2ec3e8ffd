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
from bridge.onnx.loops.scans import reverse_rows

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
    body, number, goes_on = nodes.loop_body(graph)
    body.add_result(goes_on)
    before = [body.add_input(body.unique("so_far"), value.dtype, shape) for value in values]
    rows = []
    for value in values:
        line = nodes.transpose(graph, graph.expand(value), order)
        line = nodes.reshape(graph, line, (size, *shape))
        line = reverse_rows(graph, graph.expand(line)) if reverse else line
        rows.append(nodes.gather(body, graph.expand(line), number, 0))
    combined = region.apply(body, [*before, *rows])
    reduced = [body.expand(value.broadcast_to(shape)) for value in combined]
    for value in (*reduced, *reduced):
        body.add_result(value)
    rounds = graph.expand(of_sizes((size,), np.dtype(np.int64), ()))
    inits = [graph.expand(nodes.broadcast_in_dim(graph, start, [], shape)) for start in starts]
    kinds = [(dims, v.dtype) for dims in (shape, (size, *shape)) for v in values]
    made = graph.nodes_of("Loop", [rounds, nodes.constant(True, bool), *inits], kinds, body=body)
    results = []
    for lines in made[len(values) :]:
        ordered = reverse_rows(graph, lines) if reverse else lines
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
    body, number, goes_on = nodes.loop_body(graph)
    body.add_result(goes_on)
    shape = firsts[0].shape
    before = [body.add_input(body.unique("combined"), v.dtype, shape) for v in values]
    next_one = nodes.elementwise(body, "Add", number, nodes.constant(1, np.int64))
    start = nodes.elementwise(body, "Mul", next_one, nodes.constant(dilation, np.int64))
    start = body.expand(nodes.expand_dims(body, start, [0]))
    end = nodes.elementwise(body, "Add", start, length)
    moves = [nodes.integers([axis]), nodes.integers([stride])]
    parts = [body.node("Slice", [line, start, end, *moves], shape=shape) for line in lines]
    for reduced in region.apply(body, [*before, *parts]):
        body.add_result(reduced.broadcast_to(shape))
    rounds = graph.expand(of_sizes((size - 1,), np.dtype(np.int64), ()))
    inits = [graph.expand(first) for first in firsts]
    kinds = [(shape, value.dtype) for value in values]
    return graph.nodes_of("Loop", [rounds, nodes.constant(True, bool), *inits], kinds, body=body)
