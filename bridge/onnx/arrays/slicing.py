"""Parts of arrays at places that are known, and arrays with something around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bridge.core.size_polynomials import Dim, is_static, maximum
from bridge.onnx.arrays.indexing import count_up
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.rules import Rule
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value, contents_of, of_sizes

__all__ = ["RULES", "pad"]

_FROM_THE_END = -1
_TO_THE_START = np.iinfo(np.int64).min


def _slice(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    starts, limits = op.integers("start_indices"), op.integers("limit_indices")
    strides = op.integers("strides")
    contents = contents_of(value) if value.sizes is not None and value.rank == 1 else None
    if contents is not None:
        sizes = contents[starts[0] : limits[0] : strides[0]]
        return of_sizes(sizes, value.dtype, (len(sizes),))
    return nodes.slice_(graph, value, starts, limits, strides)


def _reverse(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    missing = value.rank - len(value.held)
    axes = [axis - missing for axis in op.integers("dimensions") if axis >= missing]
    if not axes:
        return value
    ends = [nodes.integers([number] * len(axes)) for number in (_FROM_THE_END, _TO_THE_START)]
    steps = nodes.integers([-1] * len(axes))
    made = graph.node("Slice", [value, *ends, nodes.integers(axes), steps], shape=value.held)
    return made.seen_as(value.shape)


def _pad(graph: Graph, op: Operation) -> Value:
    low, high = op.integers("edge_padding_low"), op.integers("edge_padding_high")
    value, filling = op.operands
    return pad(graph, value, filling, low, high, op.integers("interior_padding"))


def _dynamic_pad(graph: Graph, op: Operation) -> Value:
    value, filling = op.operands[:2]
    low, high, interior = (op.sizes(graph, index) for index in (2, 3, 4))
    if not is_static(interior):
        return _pad_by_indices(graph, value, filling, low, high, interior)
    return pad(graph, value, filling, low, high, [int(str(n)) for n in interior])


def _pad_by_indices(
    graph: Graph,
    value: Value,
    filling: Value,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[Dim],
) -> Value:
    """As `pad`, by lookups, where only a run knows how far the elements come to lie apart."""
    do: Callable[..., Value] = partial(nodes.elementwise, graph)
    zero = nodes.constant(0, np.int64)
    for axis, (first, last, between) in enumerate(zip(low, high, interior, strict=True)):
        old, step = value.shape[axis], between + 1
        new = first + last + old + maximum(old - 1, 0) * between
        if old == 0:
            shape = [new if number == axis else dim for number, dim in enumerate(value.shape)]
            value = graph.whole(filling.seen_as(tuple(shape)))
            continue
        first_, step_, old_ = (of_sizes((n,), zero.dtype, ()) for n in (first, step, old))
        place = do("Sub", count_up(graph, new), first_)
        index = do("Div", place, step_)
        rest = do("Sub", place, do("Mul", index, step_))
        there = [
            do("Equal", rest, zero, dtype=bool),
            do("GreaterOrEqual", place, zero, dtype=bool),
            do("Less", index, old_, dtype=bool),
        ]
        inside = do("And", do("And", there[0], there[1]), there[2])
        index = do("Max", do("Min", index, do("Sub", old_, nodes.constant(1, np.int64))), zero)
        value = nodes.gather(graph, value, index, axis)
        placed = nodes.place(graph, inside, [axis], value.shape)
        value = graph.whole(nodes.where(graph, placed, value, filling))
    return value


def pad(
    graph: Graph,
    value: Value,
    filling: Value,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[int],
) -> Value:
    """The value with copies of a scalar around and between its elements.

    Args:
        graph: where it is put.
        value: any.
        filling: the scalar.
        low: how many are put before each dimension; what is negative is cut off.
        high: the same behind.
        interior: how many are put between two elements.
    """
    value, filling = graph.whole(value), graph.whole(filling)
    for axis, count in enumerate(interior):
        if count:
            value = _spread(graph, value, filling, axis, count)
    before, after = ([_natural(dim) for dim in dims] for dims in (low, high))
    if any(dim != 0 for dim in (*before, *after)):
        shape = [
            dim + first + last for dim, first, last in zip(value.shape, before, after, strict=True)
        ]
        sizes = graph.vector([*before, *after])
        value = graph.node("Pad", [value, sizes, filling], shape=shape)
    starts = [_natural(dim * -1) for dim in low]
    limits = [dim - _natural(last * -1) for dim, last in zip(value.shape, high, strict=True)]
    return nodes.slice_(graph, value, starts, limits, [1] * value.rank)


def _natural(dim: Dim) -> Dim:
    """The size, or 0 for what is negative."""
    return maximum(dim, 0)


def _spread(graph: Graph, value: Value, filling: Value, axis: int, count: int) -> Value:
    """The value with scalars between its elements: each is given some behind it, the last none."""
    size = value.shape[axis]
    rows = nodes.expand_dims(graph, value, [axis + 1])
    nothing = [0] * rows.rank
    behind = [count if number == axis + 1 else 0 for number in range(rows.rank)]
    rows = pad(graph, rows, filling, nothing, behind, nothing)
    shape = list(value.shape)
    shape[axis] = size * (count + 1)
    long = nodes.reshape(graph, rows, shape)
    limit = maximum(size * (count + 1) - count, 0)
    return nodes.slice_(graph, long, [0], [limit], [1], axes=[axis])


RULES = {
    "stablehlo.dynamic_pad": Rule(_dynamic_pad),
    "stablehlo.pad": Rule(_pad, ("edge_padding_high", "edge_padding_low", "interior_padding")),
    "stablehlo.reverse": Rule(_reverse, ("dimensions",), whole=False),
    "stablehlo.slice": Rule(_slice, ("limit_indices", "start_indices", "strides"), whole=False),
}
