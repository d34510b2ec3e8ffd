"""Batch normalizations, which older modules have as operations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value, of_size
from bridge.onnx.arithmetic.reductions import reduce_along
from bridge.onnx.graph.graph_builder import Graph
from xla_call_module.size_polynomials import product

__all__ = ["RULES"]


def _inference(graph: Graph, op: Operation) -> Value:
    x, scale, offset, mean, variance = _wide(graph, op)
    do = partial(nodes.elementwise, graph)
    scaled = do("Mul", _normalized(graph, op, x, mean, variance), scale)
    return nodes.cast(graph, do("Add", scaled, offset), op.result.dtype)


def _training(graph: Graph, op: Operation) -> Sequence[Value]:
    """The normalized array, and the mean and variance of each feature."""
    x, scale, offset = _wide(graph, op)
    do = partial(nodes.elementwise, graph)
    mean = _mean(graph, op, x)
    centered = do("Sub", x, _along_features(graph, op, mean, x))
    variance = _mean(graph, op, do("Mul", centered, centered))
    placed = [_along_features(graph, op, value, x) for value in (mean, variance)]
    scaled = do("Mul", _normalized(graph, op, x, *placed), scale)
    return _of_result_dtypes(graph, op, do("Add", scaled, offset), mean, variance)


def _gradients(graph: Graph, op: Operation) -> Sequence[Value]:
    """Return the gradients of the array, the scale and the offset of `_training`."""
    x, scale, mean, variance, gradient = _wide(graph, op)
    do = partial(nodes.elementwise, graph)
    normalized = _normalized(graph, op, x, mean, variance)
    of_scale = _sum(graph, op, do("Mul", gradient, normalized))
    of_offset = _sum(graph, op, gradient)
    count = _count(graph, op, x)
    means = [
        _along_features(graph, op, do("Div", total, count), x) for total in (of_offset, of_scale)
    ]
    rest = do("Sub", gradient, means[0])
    rest = do("Sub", rest, do("Mul", normalized, means[1]))
    of_x = do("Div", do("Mul", scale, rest), _deviation(graph, op, variance))
    return _of_result_dtypes(graph, op, of_x, of_scale, of_offset)


def _of_result_dtypes(graph: Graph, op: Operation, *results: Value) -> list[Value]:
    pairs = zip(results, op.results, strict=True)
    return [nodes.cast(graph, value, kind.dtype) for value, kind in pairs]


def _wide(graph: Graph, op: Operation) -> list[Value]:
    """The operands, of float32 at least, those of features along their dimension."""
    x = op.operands[0]
    dtype = np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    wide = [nodes.cast(graph, value, dtype) for value in op.operands]
    return [v if v.rank == x.rank > 1 else _along_features(graph, op, v, x) for v in wide]


def _along_features(graph: Graph, op: Operation, value: Value, x: Value) -> Value:
    if value.shape == x.shape and x.rank == 1:
        return value
    return nodes.broadcast_in_dim(graph, value, [op.integer("feature_index")], x.shape)


def _deviation(graph: Graph, op: Operation, variance: Value) -> Value:
    epsilon = float(op.raw.attributes["epsilon"].value)
    return nodes.elementwise(graph, "Sqrt", nodes.elementwise(graph, "Add", variance, epsilon))


def _normalized(graph: Graph, op: Operation, x: Value, mean: Value, variance: Value) -> Value:
    centered = nodes.elementwise(graph, "Sub", x, mean)
    return nodes.elementwise(graph, "Div", centered, _deviation(graph, op, variance))


def _axes(op: Operation, x: Value) -> list[int]:
    return [axis for axis in range(x.rank) if axis != op.integer("feature_index")]


def _sum(graph: Graph, op: Operation, x: Value) -> Value:
    return reduce_along(graph, "add", x, _axes(op, x)) if _axes(op, x) else x


def _count(graph: Graph, op: Operation, x: Value) -> Value:
    """Return the number of elements of each feature."""
    size = product(x.shape[axis] for axis in _axes(op, x))
    return nodes.cast(graph, of_size(size), x.dtype)


def _mean(graph: Graph, op: Operation, x: Value) -> Value:
    return nodes.elementwise(graph, "Div", _sum(graph, op, x), _count(graph, op, x))


_ATTRIBUTES = ("epsilon", "feature_index")

RULES = {
    "stablehlo.batch_norm_grad": Rule(_gradients, _ATTRIBUTES),
    "stablehlo.batch_norm_inference": Rule(_inference, _ATTRIBUTES),
    "stablehlo.batch_norm_training": Rule(_training, _ATTRIBUTES),
}
