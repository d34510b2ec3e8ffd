"""Updates of arrays one after another, for which ONNX has no operation that does all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Region
from bridge.onnx.graph.values import Value, of_sizes

__all__ = ["update_in_order"]


def update_in_order(
    graph: Graph, region: Region, matrices: Sequence[Value], index: Value, updates: Sequence[Value]
) -> list[Value]:
    """Matrices of which rows have been replaced, in a loop, by what a region makes of them.

    Args:
        graph: where it is put.
        region: of the elements that there are in all matrices, and of the updates for them.
        matrices: with one update each for the same rows.
        index: for each update the row.
        updates: a matrix of them for each of the others.
    """
    body, number, goes_on = nodes.loop_body(graph)
    carried = [body.add_input(body.unique("matrix"), m.dtype, m.shape) for m in matrices]
    this = nodes.reshape(body, number, (1,))
    place = nodes.gather(body, index, this, 0)
    old = [nodes.gather(body, matrix, place, 0) for matrix in carried]
    new = [nodes.gather(body, update, this, 0) for update in updates]
    found = region.apply(body, [*old, *new])
    column = nodes.reshape(body, place, (1, 1))
    body.add_result(goes_on)
    for matrix, before, row in zip(carried, old, found, strict=True):
        inputs = [matrix, body.whole(column), body.whole(row.seen_as(before.shape))]
        body.add_result(body.node("ScatterND", inputs, shape=matrix.shape))
    rounds = graph.whole(of_sizes((index.shape[0],), np.dtype(np.int64), ()))
    kinds = [(matrix.shape, matrix.dtype) for matrix in matrices]
    inits = [rounds, nodes.constant(True, bool), *map(graph.whole, matrices)]
    return graph.nodes_of("Loop", inits, kinds, body=body)
