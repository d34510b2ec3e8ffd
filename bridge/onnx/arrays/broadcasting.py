"""Broadcasts, which ONNX does by itself wherever an elementwise operation follows."""

from __future__ import annotations

from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value

__all__ = ["RULES"]


def _broadcast_in_dim(graph: Graph, op: Operation) -> Value:
    value, axes = op.operands[0], op.integers("broadcast_dimensions")
    # A size of no more than some number is the operand's, if that does not grow.
    kept = {axis: dim for axis, dim in zip(axes, value.shape, strict=True) if dim != 1}
    known = [kept.get(axis) if dim is None else dim for axis, dim in enumerate(op.result.shape)]
    dims = [dim for dim in known if dim is not None]
    if len(dims) < len(known):
        op.refuse("a size of its result follows from nothing", "say how large it is")
    return nodes.place(graph, value, axes, dims)


def _dynamic_broadcast_in_dim(graph: Graph, op: Operation) -> Value:
    value, axes = op.operands[0], op.integers("broadcast_dimensions")
    shape = op.shape_like(op.sizes(graph, 1))
    return nodes.place(graph, value, axes, [dim for dim in shape if dim is not None])


def _broadcast(graph: Graph, op: Operation) -> Value:
    """New dimensions in front."""
    (value,) = op.operands
    new = op.integers("broadcast_sizes")
    axes = range(len(new), len(new) + value.rank)
    return nodes.place(graph, value, axes, (*new, *value.shape))


RULES = {
    "stablehlo.broadcast": Rule(_broadcast, ("broadcast_sizes",), whole=False),
    "stablehlo.broadcast_in_dim": Rule(_broadcast_in_dim, ("broadcast_dimensions",), whole=False),
    "stablehlo.dynamic_broadcast_in_dim": Rule(
        _dynamic_broadcast_in_dim,
        (
            "broadcast_dimensions",
            "known_expanding_dimensions",
            "known_non_expanding_dimensions",
            "known_nonexpanding_dimensions",
        ),
        whole=False,
    ),
}
