"""Several operations that are one operation of TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops.softmaxes import Reduction
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value

__all__ = ["fuse_affine", "fuse_mean"]

_IMAGE_RANK = 4


def fuse_affine(graph: TensorGraph, product: Value, shift: Value) -> Value | None:
    """Return `x * scale + (shift - mean * scale)` for `(x - mean) * scale + shift`.

    So a batch norm of stored statistics goes through its images twice and not three times, as
    TensorFlow's own does. Mean, scale and shift have one number for each feature.
    """
    for one, other in ((product, shift), (shift, product)):
        node = graph.source(one.name, "Mul") if _is_row(other) and one.is_expanded else None
        for place in (0, 1) if node is not None else ():
            assert node is not None, "there is a product"
            scale = _row_of(graph, node.inputs[1 - place], one.dtype)
            centred = graph.source(node.inputs[place], "Sub")
            if scale is not None and centred is not None:
                return _affine(graph, centred.inputs, scale, other, one)
    return None


def _affine(
    graph: TensorGraph, centred: Sequence[str], scale: Value, shift: Value, like: Value
) -> Value | None:
    """Return a product and a sum, where a mean that is stored was subtracted before."""
    name, mean = centred[0], _row_of(graph, centred[1], like.dtype)
    if graph.shape_of(name) != like.shape or mean is None or not _is_stored(graph, mean.name):
        return None
    do = partial(nodes.elementwise, graph)
    rest = do("Sub", shift, do("Mul", mean, scale)).broadcast_to(like.shape)
    value = Value(like.dtype, like.shape, like.shape, name)
    return do("Add", do("Mul", value, scale), rest)


def _is_row(value: Value) -> bool:
    """Return whether a value has one number for each place in the last dimension of images."""
    shape = value.unbroadcast_shape
    is_row = bool(shape) and all(dim == 1 for dim in shape[:-1])
    return is_row and value.rank == _IMAGE_RANK and bool(value.name)


def _row_of(graph: TensorGraph, name: str, dtype: np.dtype[Any]) -> Value | None:
    """Return the value of a name, if it has one number for each place in the last dimension."""
    shape = graph.shape_of(name)
    if shape is None or not shape or not all(dim == 1 for dim in shape[:-1]):
        return None
    return Value(dtype, (1,) * (_IMAGE_RANK - len(shape)) + shape, shape, name)


def _is_stored(graph: TensorGraph, name: str) -> bool:
    """Return whether a value is an argument, in whatever shape."""
    node = graph.source(name)
    while node is not None and node.op_type in ("Expand", "Reshape", "Unsqueeze"):
        name = node.inputs[0]
        node = graph.source(name)
    return node is None


def fuse_mean(graph: TensorGraph, dividend: Value, divisor: Value) -> Value | None:
    """Return Mean for a sum by how many there were; None for other quotients."""
    column = graph.source(dividend.name, "Unsqueeze")
    fact = graph.recall(dividend.name if column is None else column.inputs[0])
    if not isinstance(fact, Reduction) or fact.reducer != "add" or divisor.scalar is None:
        return None
    sizes = [fact.shape[axis] for axis in fact.axes]
    count = math.prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes) or divisor.scalar != count:
        return None
    axes = list(fact.axes)
    if column is not None:
        expanded = graph.constant(column.inputs[1])
        if expanded is None or expanded.tolist() != axes:
            return None
    given = Value(dividend.dtype, (), (), fact.name)
    shape = dividend.unbroadcast_shape
    vector = graph.vector(axes)
    keepdims = int(column is not None)
    made = graph.node("ReduceMean", [given, vector], shape=shape, keepdims=keepdims)
    return made.broadcast_to(dividend.shape)
