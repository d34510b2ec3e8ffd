"""Normalizations by a mean and a variance, which are one operation of ONNX each.

They are found from their last operation on, as in `bridge.onnx.arithmetic.fusions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridge.core.size_polynomials import Shape
from bridge.onnx.graph import layouts
from bridge.onnx.graph.folding import MAX_BYTES
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.values import Value

__all__ = ["fuse_normalizing_product", "fuse_normalizing_sum"]

# The small number is an attribute, which is a float32, and by the specification mean and deviation
# have that precision, too.
_DTYPE = "float32"


def fuse_normalizing_product(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return LayerNormalization, which ends in a product; None for other products."""
    if left.dtype.name != _DTYPE:
        return None
    for one, other in ((left, right), (right, left)):
        if (fused := _layer(graph, one, other) or _scaled_layer(graph, one, other)) is not None:
            return fused
    return None


def fuse_normalizing_sum(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return BatchNormalization, or LayerNormalization with a shift; None for other sums."""
    if left.dtype.name != _DTYPE:
        return None
    for one, other in ((left, right), (right, left)):
        if (fused := _shifted_layer(graph, one, other) or _batch(graph, one, other)) is not None:
            return fused
    return None


@dataclass(frozen=True, slots=True)
class _Deviation:
    """A root of a variance and a small number, which something is divided by.

    Attributes:
        variance: the name of the variance.
        epsilon: the small number.
    """

    variance: str
    epsilon: float


def _deviation(graph: Graph, name: str) -> _Deviation | None:
    """Return the variance and the epsilon that the reciprocal of a deviation is made of."""
    reciprocal = graph.source(name, "Reciprocal")
    root = None if reciprocal is None else graph.source(reciprocal.inputs[0], "Sqrt")
    total = None if root is None else graph.source(root.inputs[0], "Add")
    for place, other in enumerate(total.inputs if total is not None else ()):
        array = graph.constant(other)
        if array is not None and array.size == 1:
            assert total is not None, "it has inputs"
            return _Deviation(total.inputs[1 - place], float(array.reshape(())))
    return None


def _layer(graph: Graph, centred: Value, factor: Value) -> Value | None:
    difference = graph.source(centred.name, "Sub")
    deviation = _deviation(graph, factor.name)
    if difference is None or deviation is None or not centred.is_expanded:
        return None
    name, mean = difference.inputs
    squares = _mean(graph, deviation.variance, centred.shape)
    square = None if squares is None else graph.source(squares, "Mul")
    if square is None or square.inputs[0] != square.inputs[1]:
        return None
    inner = graph.source(square.inputs[0], "Sub")
    if inner is None or inner.inputs[0] != name or graph.shape_of(name) != centred.shape:
        return None
    if any(_mean(graph, one, centred.shape) != name for one in (mean, inner.inputs[1])):
        return None
    size = centred.shape[-1]
    if not isinstance(size, int) or size > MAX_BYTES:
        return None
    ones = np.ones(size, centred.dtype)
    given = Value(centred.dtype, centred.shape, centred.shape, name)
    scale = Value(centred.dtype, (size,), (size,), array=ones)
    return _layer_node(graph, given, scale, None, deviation.epsilon)


def _mean(graph: Graph, name: str, shape: Shape) -> str | None:
    """Return the value that another one is the mean of, along the last dimension (kept as 1)."""
    node = graph.source(name, "ReduceMean")
    if node is None or node.attributes.get("keepdims") != 1:
        return None
    axes = graph.initializers.get(node.inputs[1])
    if axes is None or axes.tolist() not in ([len(shape) - 1], [-1]):
        return None
    return node.inputs[0]


def _layer_node(
    graph: Graph, value: Value, scale: Value, shift: Value | None, epsilon: float
) -> Value:
    inputs = [value, scale] if shift is None else [value, scale, shift]
    return graph.node("LayerNormalization", inputs, shape=value.shape, axis=-1, epsilon=epsilon)


def _is_row(value: Value, like: Value) -> bool:
    """Return whether a value has one number for each place in the last dimension."""
    return value.unbroadcast_shape == like.shape[-1:] and isinstance(
        value.unbroadcast_shape[0], int
    )


def _scaled_layer(graph: Graph, normalized: Value, scale: Value) -> Value | None:
    node = graph.source(normalized.name, "LayerNormalization")
    if node is None or len(node.inputs) != 2 or not _is_row(scale, normalized):
        return None
    before = graph.constant(node.inputs[1])
    if before is None or (before != 1).any():
        return None
    given = Value(normalized.dtype, normalized.shape, normalized.shape, node.inputs[0])
    return _layer_node(graph, given, scale, None, node.attributes["epsilon"])


def _shifted_layer(graph: Graph, normalized: Value, shift: Value) -> Value | None:
    node = graph.source(normalized.name, "LayerNormalization")
    if node is None or len(node.inputs) != 2 or not _is_row(shift, normalized):
        return None
    given = Value(normalized.dtype, normalized.shape, normalized.shape, node.inputs[0])
    scale = Value(shift.dtype, shift.unbroadcast_shape, shift.unbroadcast_shape, node.inputs[1])
    return _layer_node(graph, given, scale, shift, node.attributes["epsilon"])


def _batch(graph: Graph, product: Value, shift: Value) -> Value | None:
    """Match `(x - mean) * (scale / deviation) + shift`, where x has features behind the batch."""
    fact = layouts.transposition_of(graph, product)
    if fact is None or fact.order[-1] != 1 or len(shift.unbroadcast_shape) != 1 or not shift.name:
        return None
    multiplied = graph.source(fact.value.name, "Mul")
    for place, name in enumerate(multiplied.inputs if multiplied is not None else ()):
        assert multiplied is not None, "it has inputs"
        difference = graph.source(name, "Sub")
        factor = _row(graph, multiplied.inputs[1 - place])
        if difference is None or factor is None:
            continue
        mean, scaling = _row(graph, difference.inputs[1]), _scale(graph, factor)
        shape = graph.shape_of(difference.inputs[0])
        if mean is None or scaling is None or shape != fact.value.shape:
            continue
        scale, deviation = scaling
        rows = [scale, shift.name, mean, deviation.variance]
        if any(graph.shape_of(row) != shift.unbroadcast_shape for row in rows):
            continue
        return _batch_node(graph, difference.inputs[0], rows, deviation.epsilon, product, fact)
    return None


def _row(graph: Graph, name: str) -> str | None:
    """The features that a value is, before they were put where those of images are."""
    column = graph.source(name, "Unsqueeze")
    return None if column is None else column.inputs[0]


def _scale(graph: Graph, name: str) -> tuple[str, _Deviation] | None:
    product = graph.source(name, "Mul")
    for place, factor in enumerate(product.inputs if product is not None else ()):
        deviation = _deviation(graph, factor)
        if product is not None and deviation is not None:
            return product.inputs[1 - place], deviation
    return None


def _batch_node(
    graph: Graph, name: str, rows: list[str], epsilon: float, like: Value, fact: layouts.Transposed
) -> Value:
    inner = fact.value
    values = [Value(like.dtype, inner.shape, inner.shape, name)]
    values += [Value(like.dtype, (), (), row) for row in rows]
    made = graph.node("BatchNormalization", values, shape=inner.shape, epsilon=epsilon)
    return layouts.transpose(graph, made, fact.order)
