"""Running reductions along a dimension of which only a run knows the size, by a region of any kind.

Those of sums are ONNX's CumSum (`bridge.onnx.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.onnx import nodes
from bridge.onnx.graph import Graph
from bridge.onnx.operation import Region
from bridge.onnx.scans import turned
from bridge.onnx.values import Value, of_sizes

__all__ = ["reduce_so_far"]


def reduce_so_far(
    graph: Graph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axis: int,
    *,
    reverse: bool,
) -> list[Value]:
    """For each element what a region makes of it and all before it, or behind it.

    Args:
        graph: where it is put.
        region: of two elements of each array.
        values: the arrays.
        starts: what each reduction begins with, scalars.
        axis: the dimension along which it goes.
        reverse: whether it begins with the last element.
    """
    rank = values[0].rank
    order = [axis, *(number for number in range(rank) if number != axis)]
    size, *rest = (values[0].shape[number] for number in order)
    shape = tuple(rest) or (1,)  # ONNX's reference evaluator puts no scalars together
    body = graph.body()
    number = body.add_input(body.unique("round"), np.dtype(np.int64), ())
    body.add_result(body.add_input(body.unique("goes_on"), np.dtype(bool), ()))
    before = [body.add_input(body.unique("so_far"), value.dtype, shape) for value in values]
    rows = []
    for value in values:
        line = nodes.transpose(graph, graph.whole(value), order)
        line = nodes.reshape(graph, line, (size, *shape))
        line = turned(graph, graph.whole(line)) if reverse else line
        rows.append(nodes.gather(body, graph.whole(line), number, 0))
    combined = region.apply(body, [*before, *rows])
    found = [body.whole(value.seen_as(shape)) for value in combined]
    for value in (*found, *found):
        body.add_result(value)
    rounds = graph.whole(of_sizes((size,), np.dtype(np.int64), ()))
    inits = [graph.whole(nodes.place(graph, start, [], shape)) for start in starts]
    kinds = [(dims, v.dtype) for dims in (shape, (size, *shape)) for v in values]
    made = graph.nodes_of("Loop", [rounds, nodes.constant(True, bool), *inits], kinds, body=body)
    results = []
    for lines in made[len(values) :]:
        ordered = turned(graph, lines) if reverse else lines
        ordered = nodes.reshape(graph, ordered, (size, *rest))
        results.append(nodes.transpose(graph, ordered, [order.index(a) for a in range(rank)]))
    return results
