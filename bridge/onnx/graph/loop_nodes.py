"""ONNX's Loop, as rules write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from bridge.graphs.nodes import constant
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, of_size
from xla_call_module.size_polynomials import Dim, Shape

G = TypeVar("G", bound=TensorGraph)


def loop(
    graph: TensorGraph,
    size: Dim,
    inits: Sequence[Value],
    step: Callable[[TensorGraph, Value, list[Value]], Sequence[Value]],
    row_shape: Shape | None = None,
) -> list[Value]:
    """Return the carried values behind a Loop, then the rows that its iterations return, if any."""
    body, number, goes_on = loop_body(graph)
    carried = [body.add_input(body.unique("carried"), init.dtype, init.shape) for init in inits]
    body.add_result(goes_on)
    for value in step(body, number, carried):
        body.add_result(value)
    shapes = [init.shape for init in inits]
    if row_shape is not None:
        shapes += [(size, *row_shape)] * len(inits)
    kinds = [(shape, inits[place % len(inits)].dtype) for place, shape in enumerate(shapes)]
    inputs = [of_size(size), constant(True, bool), *inits]
    return graph.nodes_of("Loop", [graph.expand(value) for value in inputs], kinds, body=body)


def loop_body(graph: G) -> tuple[G, Value, Value]:
    """The graph of a Loop in this one, the number of the round, and the flag that says go on."""
    body = graph.body()
    number = body.add_input(body.unique("round"), np.dtype(np.int64), ())
    return body, number, body.add_input(body.unique("goes_on"), np.dtype(bool), ())
