"""Reductions of windows that move over an array, and what undoes the choice of their maximum.

Pools of runtimes lose NaNs and take the lowest finite number for -inf. So the windows of every kind
of reduction are made of smaller ones, of twice as many elements at each step, unless the graph can
tell that a pool computes the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops.regions import (
    REDUCERS,
    changes_nothing_in,
    depends_on_order,
    is_identity,
    reducer_of,
)
from bridge.core_ops.slicing import pad
from bridge.core_ops.stablehlo_operation import Operation, Region, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, of_array, of_sizes
from xla_call_module.size_polynomials import Dim, floordiv, is_static, numbers_of, product
from xla_call_module.stablehlo.combiners import identity_of
from xla_call_module.stablehlo.walking import WINDOW_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a reduction, with one number for each dimension.

    Attributes:
        sizes: the number of elements in a window.
        strides: the distance from one window to the next.
        base_dilations: the distance between elements of the array.
        dilations: the distance between elements in a window.
        low: the number of elements that are put before the array.
        high: the number behind it.
    """

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]


def count_windows(length: Dim, size: Dim, stride: int, dilation: int = 1) -> Dim:
    """Return the number of windows along a dimension of some length, padding included."""
    count = floordiv(length - 1 - (size - 1) * dilation, stride) + 1
    return max(count, 0) if isinstance(count, int) else count


@dataclass(frozen=True, slots=True)
class WindowSum:
    """The fact that a value has the sums of windows.

    Attributes:
        value: the value that the windows are of.
        rows: size, stride and padding along each of its dimensions.
    """

    value: Value
    rows: tuple[tuple[int, int, int, int], ...]


# Elements of several values, and others that come after them -> what the two make.
_Combine = Callable[[Sequence[Value], Sequence[Value]], list[Value]]

# Up to how many small floats are summed one after another.
_MAX_IN_ORDER = 32

# Up to how many elements a window has that are combined one after another.
_MAX_FOLDED = 1024

# How many operands of a `dynamic_reduce_window` say what its windows are.
_COMPUTED = 5

_SCATTERED = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "mul"}
_SCATTERED_OF_BOOLS = {"add": "max", "and": "min", "maximum": "max", "minimum": "min",
                       "multiply": "min", "or": "max"}  # fmt: skip


def _read_windows(op: Operation, rank: int) -> _Windows:
    ones = (1,) * rank
    low, high = op.padding(rank)
    return _Windows(
        sizes=op.integers("window_dimensions", ones),
        strides=op.integers("window_strides", ones),
        base_dilations=op.integers("base_dilations", ones),
        dilations=op.integers("window_dilations", ones),
        low=low,
        high=high,
    )


def _reduce_window(graph: TensorGraph, op: Operation) -> Sequence[Value]:
    shape = tuple(dim for dim in op.results[0].shape if dim is not None)
    if 0 in shape and len(shape) == len(op.results[0].shape):
        starts = op.operands[len(op.operands) // 2 :]
        return [graph.expand(start.broadcast_to(shape)) for start in starts]
    return _reduce(graph, op, op.operands, _read_windows(op, op.operands[0].rank))


def dynamic_reduce_window(graph: TensorGraph, op: Operation) -> Sequence[Value]:
    """The same with sizes that are computed, which JAX has as a custom call."""
    values, numbers = op.operands[:-_COMPUTED], op.operands[-_COMPUTED:]
    flat = [nodes.reshape(graph, value, (product(value.shape),)) for value in numbers]
    given = dataclasses.replace(op, operands=tuple(flat))
    sizes, strides, base_dilations, dilations, padding = (
        given.sizes(graph, n) for n in range(_COMPUTED)
    )
    if not is_static((*strides, *base_dilations, *dilations)):
        op.refuse("its strides or dilations are dynamic")
    windows = _Windows(
        sizes=sizes,
        strides=numbers_of(strides),
        base_dilations=numbers_of(base_dilations),
        dilations=numbers_of(dilations),
        low=padding[::2],
        high=padding[1::2],
    )
    return _reduce(graph, op, values, windows)


def _reduce(
    graph: TensorGraph, op: Operation, operands: Sequence[Value], windows: _Windows
) -> Sequence[Value]:
    (region,) = op.regions
    value, start = operands[0], operands[len(operands) // 2]
    reducer = reducer_of(region) if len(operands) == 2 else ""
    if reducer == "add" and is_identity(reducer, start):
        running = _running_sum(graph, value, windows)
        if running is not None:
            return [running]
    if reducer not in ("add", "multiply") or not _is_narrow(value):
        return _reduce_as(reducer, graph, op, operands, windows)
    wide = [nodes.cast(graph, operand, np.float32) for operand in operands]  # rounded once
    (made,) = _reduce_as(reducer, graph, op, wide, windows)
    return [nodes.cast(graph, made, value.dtype)]


def _reduce_as(
    reducer: str, graph: TensorGraph, op: Operation, operands: Sequence[Value], windows: _Windows
) -> Sequence[Value]:
    """Return the reduction by a reducer, or by the region where that is empty."""
    count = len(operands) // 2
    values, starts = operands[:count], operands[count:]
    (region,) = op.regions
    changes_nothing = reducer in REDUCERS and is_identity(reducer, starts[0])

    def combine(first: Sequence[Value], second: Sequence[Value]) -> list[Value]:
        return region.apply(graph, [*first, *second])

    if not reducer and (
        depends_on_order(region, graph)
        or (_has_padding(windows) and not changes_nothing_in(region, starts, graph))
    ):
        return _fold(graph, op, values, starts, windows, combine)
    fillings = starts
    if reducer in REDUCERS:  # XLA leaves out what is put around the array
        fillings = (of_array(identity_of(reducer, values[0].dtype)),)
    if reducer and changes_nothing and (rows := _rows(windows)) is not None:
        pooled = graph.pooled(reducer, values[0], rows)
        if pooled is not None:
            return [pooled]
    if not is_static(windows.sizes) and (way := _running_axis(values[0], windows)) is not None:
        axis, reverse = way
        return _reduce_so_far(graph, region, values, starts, axis, reverse=reverse)
    padded = _padded(graph, values, fillings, windows)
    reduced = _slide(graph, padded, windows, combine)
    reduced = _slide_by_rounds(graph, region, reduced, windows)
    if changes_nothing:
        _remember_sum(graph, reducer, values[0], reduced[0], windows)
        return reduced
    return combine([start.broadcast_to(reduced[0].shape) for start in starts], reduced)


def _remember_sum(
    graph: TensorGraph, reducer: str, value: Value, reduced: Value, windows: _Windows
) -> None:
    rows = _rows(windows) if reducer == "add" else None
    if rows is not None:
        graph.remember(reduced, WindowSum(value, tuple(rows)))


def _has_padding(windows: _Windows) -> bool:
    """Return whether something is put around the array or between its elements."""
    counts = (*windows.low, *windows.high)
    return any(count != 0 for count in counts) or max(windows.base_dilations, default=1) > 1


def _rows(windows: _Windows) -> list[tuple[int, int, int, int]] | None:
    """Return size, stride and padding along each dimension; None for any other windows."""
    numbers = (windows.sizes, windows.strides, windows.low, windows.high)
    is_dilated = any(step != 1 for step in (*windows.base_dilations, *windows.dilations))
    if is_dilated or not all(map(is_static, numbers)):
        return None
    return list(zip(*map(numbers_of, numbers), strict=True))


def _running_axis(value: Value, windows: _Windows) -> tuple[int, bool] | None:
    """The dimension, if windows are all that is before an element, or, in reverse, behind it."""
    axes = [axis for axis, size in enumerate(windows.sizes) if size != 1]
    if len(axes) != 1:
        return None
    (axis,) = axes
    ones = (1,) * value.rank
    moves = windows.strides, windows.base_dilations, windows.dilations
    size, low, high = windows.sizes[axis], windows.low[axis], windows.high[axis]
    pairs = enumerate(zip(windows.low, windows.high, strict=True))
    others = any(pair != (0, 0) for number, pair in pairs if number != axis)
    whole = size == value.shape[axis] and (low, high) in ((0, size - 1), (size - 1, 0))
    return None if moves != (ones, ones, ones) or others or not whole else (axis, high != 0)


def _running_sum(graph: TensorGraph, value: Value, windows: _Windows) -> Value | None:
    """Return CumSum if windows are all elements up to each, or from each on; None otherwise."""
    if value.dtype == bool or (way := _running_axis(value, windows)) is None:
        return None
    axis, reverse = way
    size = windows.sizes[axis]
    if _is_narrow(value) and isinstance(size, int) and size <= _MAX_IN_ORDER:
        return _sum_in_order(graph, graph.expand(value), axis, size, reverse=reverse)
    index = nodes.constant(axis, np.int64)
    return graph.node(
        "CumSum", [graph.expand(value), index], shape=value.shape, reverse=int(reverse)
    )


def _is_narrow(value: Value) -> bool:
    """Return whether elements are floats of less than 32 bits."""
    return value.is_float and value.dtype.itemsize < np.dtype(np.float32).itemsize


def _sum_in_order(
    graph: TensorGraph, value: Value, axis: int, size: int, *, reverse: bool
) -> Value:
    """Return running sums of small floats, each rounded before the next, as in XLA.

    The runtime rounds where it is told to, and not after its own sum of float16.
    """

    def part(array: Value, start: int, limit: int) -> Value:
        return nodes.slice_along(graph, array, axis, start, limit)

    def add(left: Value, right: Value) -> Value:
        wide = [nodes.cast(graph, number, np.float32) for number in (left, right)]
        return nodes.cast(graph, nodes.elementwise(graph, "Add", *wide), value.dtype)

    sums: list[Value] = []
    running = value if reverse else part(value, 0, 1)
    for count in range(1, size):
        if reverse:  # the sums from each element on, as far as that goes
            left = size - count
            sums.append(part(running, left, left + 1))
            running = add(part(running, 0, left), part(value, count, size))
        else:
            sums.append(running)
            running = add(running, part(value, count, count + 1))
    sums.append(running)
    return nodes.concat(graph, sums[::-1] if reverse else sums, axis)


def _padded(
    graph: TensorGraph, values: Sequence[Value], fillings: Sequence[Value], windows: _Windows
) -> list[Value]:
    between = [step - 1 for step in windows.base_dilations]
    return [
        pad(graph, value, filling, windows.low, windows.high, between)
        for value, filling in zip(values, fillings, strict=True)
    ]


def _slide(
    graph: TensorGraph, values: Sequence[Value], windows: _Windows, combine: _Combine
) -> list[Value]:
    """The reductions of all windows; the last dimension goes first, so that the order stays.

    Dimensions along which their sizes are dynamic are left as they are.
    """
    reduced = list(values)
    for axis, size in reversed(list(enumerate(windows.sizes))):
        if not isinstance(size, int):
            continue
        stride, dilation = windows.strides[axis], windows.dilations[axis]
        if stride > 1 and size <= min(_MAX_FOLDED, stride * _combinations(size)):
            reduced = _one_by_one(graph, reduced, axis, size, stride, dilation, combine)
            continue
        if size > 1:
            reduced = _along(graph, reduced, axis, size, dilation, combine)
        if stride > 1:
            limit = floordiv(reduced[0].shape[axis] - 1, stride) * stride + 1
            reduced = [nodes.slice_along(graph, value, axis, 0, limit, stride) for value in reduced]
    return reduced


def _fold(
    graph: TensorGraph,
    op: Operation,
    values: Sequence[Value],
    starts: Sequence[Value],
    windows: _Windows,
    combine: _Combine,
) -> list[Value]:
    """The reductions of all windows, from what they begin with to their last elements.

    XLA leaves out what is put around the array and between its elements.
    """
    if not is_static(windows.sizes):
        op.refuse("the sizes of its windows are dynamic, and what order and padding do matters")
    sizes = numbers_of(windows.sizes)
    if math.prod(sizes) > _MAX_FOLDED:
        op.refuse(
            f"its windows have {math.prod(sizes)} elements, and what order and padding do matters"
        )
    axes = range(len(sizes))
    lengths = values[0].shape
    values = _padded(graph, values, starts, windows)
    moves = (values[0].shape, sizes, windows.strides, windows.dilations)
    counts = [count_windows(*row) for row in zip(*moves, strict=True)]
    folded = [start.broadcast_to(tuple(counts)) for start in starts]
    for place in np.ndindex(*sizes):
        begins = [place[axis] * windows.dilations[axis] for axis in axes]
        ends = [
            (count - 1) * stride + begin + 1
            for count, stride, begin in zip(counts, windows.strides, begins, strict=True)
        ]
        part = [
            nodes.slice_(graph, value, begins, ends, windows.strides, axes=axes) for value in values
        ]
        are_there = np.ones((), bool)
        for axis in axes:
            row = _which_are_there(op, windows, axis, lengths[axis], counts[axis], begins[axis])
            are_there = are_there & np.expand_dims(row, tuple({*axes} - {axis}))
        combined = combine(folded, part)
        folded = [
            nodes.where(graph, nodes.constant(are_there, np.bool_), new, old)
            for new, old in zip(combined, folded, strict=True)
        ]
    return folded


def _which_are_there(
    op: Operation, windows: _Windows, axis: int, length: Dim, count: Dim, begin: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return of which windows an element is one of the array, along a dimension."""
    step, low, high = windows.base_dilations[axis], windows.low[axis], windows.high[axis]
    if (step, low, high) == (1, 0, 0):
        return np.ones(1, bool)
    if not (isinstance(length, int) and isinstance(count, int) and isinstance(low, int)):
        op.refuse("a dimension with padding is dynamic, and the padding takes no part")
    places = np.arange(count) * windows.strides[axis] + begin - low
    is_one = (places >= 0) & (places % step == 0) & (places // step < length)
    return np.asarray(is_one, bool)


def _slide_by_rounds(
    graph: TensorGraph, region: Region, values: list[Value], windows: _Windows
) -> list[Value]:
    """The same along the dimensions that are left, in loops."""
    reduced = values
    for axis, size in enumerate(windows.sizes):
        if not isinstance(size, int):
            moves = windows.strides[axis], windows.dilations[axis]
            reduced = _combine_neighbours(graph, region, reduced, axis, size, *moves)
    return reduced


def _combinations(size: int) -> int:
    """Return how often `_along` combines two values, each almost as large as the array."""
    return size.bit_length() - 1 + size.bit_count() - 1


def _one_by_one(
    graph: TensorGraph,
    values: Sequence[Value],
    axis: int,
    size: int,
    stride: int,
    dilation: int,
    combine: _Combine,
) -> list[Value]:
    """Reduce windows along a dimension by their first elements, their second ones, and so on.

    All of them are as small as the result, which is less work for few elements far apart.
    """
    count = count_windows(values[0].shape[axis], size, stride, dilation)
    reduced: list[Value] = []
    for start in range(0, size * dilation, dilation):
        limit = (count - 1) * stride + start + 1
        part = [nodes.slice_along(graph, value, axis, start, limit, stride) for value in values]
        reduced = combine(reduced, part) if reduced else part
    return reduced


def _along(
    graph: TensorGraph,
    values: Sequence[Value],
    axis: int,
    size: int,
    dilation: int,
    combine: _Combine,
) -> list[Value]:
    """Reduce windows along a dimension from windows of powers of two elements."""
    length = values[0].shape[axis]
    powers, done = list(values), 0
    reduced: list[Value] = []
    width = 1
    while True:
        if size & width:
            count = length - (done + width - 1) * dilation
            reduced = _shifted(graph, reduced, powers, axis, done * dilation, count, combine)
            done += width
        if done == size:
            return reduced
        count = length - (2 * width - 1) * dilation
        powers = _shifted(graph, powers, powers, axis, width * dilation, count, combine)
        width *= 2


def _shifted(
    graph: TensorGraph,
    first: Sequence[Value],
    second: Sequence[Value],
    axis: int,
    offset: int,
    count: Dim,
    combine: _Combine,
) -> list[Value]:
    """Combine values with others that are further on."""
    behind = [nodes.slice_along(graph, value, axis, offset, count + offset) for value in second]
    if not first:
        return behind
    before = [nodes.slice_along(graph, value, axis, 0, count) for value in first]
    return combine(before, behind)


def _reduce_so_far(
    graph: TensorGraph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axis: int,
    *,
    reverse: bool,
) -> list[Value]:
    """Return the reductions by a Loop of all elements up to each, or in reverse, from each on."""
    rank = values[0].rank
    order = [axis, *(number for number in range(rank) if number != axis)]
    size, *rest = (values[0].shape[number] for number in order)
    shape = tuple(rest) or (1,)  # ONNX's reference evaluator puts no scalars together
    lines = []
    for value in values:
        line = nodes.transpose(graph, graph.expand(value), order)
        line = graph.expand(nodes.reshape(graph, line, (size, *shape)))
        lines.append(nodes.reverse(graph, line, [0]) if reverse else line)

    def step(body: TensorGraph, number: Value, before: list[Value]) -> list[Value]:
        rows = [nodes.gather(body, line, number, 0) for line in lines]
        combined = region.apply(body, [*before, *rows])
        return [body.expand(value.broadcast_to(shape)) for value in combined] * 2

    inits = [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    made = graph.loop(size, inits, step, row_shape=shape)
    results = []
    for reduced in made[len(values) :]:
        ordered = nodes.reverse(graph, reduced, [0]) if reverse else reduced
        ordered = nodes.reshape(graph, ordered, (size, *rest))
        results.append(nodes.transpose(graph, ordered, [order.index(a) for a in range(rank)]))
    return results


def _combine_neighbours(
    graph: TensorGraph,
    region: Region,
    values: Sequence[Value],
    axis: int,
    size: Dim,
    stride: int,
    dilation: int,
) -> list[Value]:
    """Return the reduction by a Loop of each window of a dynamic number of elements."""
    count = count_windows(values[0].shape[axis], size, stride, dilation)
    reach = (count - 1) * stride + 1
    firsts = [nodes.slice_along(graph, v, axis, 0, reach, stride) for v in values]
    length = graph.expand(of_sizes((reach,), np.dtype(np.int64), (1,)))
    lines = [graph.expand(value) for value in values]
    shape = firsts[0].shape

    def step(body: TensorGraph, number: Value, before: list[Value]) -> list[Value]:
        start = nodes.elementwise(body, "Mul", nodes.elementwise(body, "Add", number, 1), dilation)
        start = body.expand(nodes.expand_dims(body, start, [0]))
        end = nodes.elementwise(body, "Add", start, length)
        moves = [graph.vector([axis]), graph.vector([stride])]
        parts = [body.node("Slice", [line, start, end, *moves], shape=shape) for line in lines]
        return [reduced.broadcast_to(shape) for reduced in region.apply(body, [*before, *parts])]

    return graph.loop(size - 1, firsts, step)


def _select_and_scatter(graph: TensorGraph, op: Operation) -> Value:
    """Return the array with each window's update at the element that its region chooses."""
    (value, source, start), (select, scatter) = op.operands, op.regions
    if 0 in (*source.shape, *value.shape):
        return graph.expand(start.broadcast_to(value.shape))
    windows = _read_windows(op, value.rank)
    numbers = map(numbers_of, (windows.sizes, windows.low, windows.high))
    for size, low, high in zip(*numbers, strict=True):
        if max(low, high) >= size:
            op.refuse("a window may have nothing but padding")
    table = _SCATTERED_OF_BOOLS if source.dtype == bool else _SCATTERED
    reducer = table.get(reducer_of(scatter))
    if reducer is None:
        op.refuse("it combines several updates of one element by no reduction")
    made_of = np.dtype(np.uint8) if source.dtype == bool else source.dtype

    def choose(first: Sequence[Value], second: Sequence[Value]) -> list[Value]:
        (kept,) = select.apply(graph, [first[0], second[0]])
        do = partial(nodes.elementwise, graph)
        chosen = do("And", do("Or", kept, do("Equal", second[1], -1)), do("Greater", first[1], -1))
        return [nodes.where(graph, chosen, *pair) for pair in zip(first, second, strict=True)]

    count = product(value.shape)
    fillings = [nodes.constant_like(value, 0), nodes.constant(-1, np.int64)]
    # No constant, since it may be long.
    line = nodes.count_up(graph, count, is_constant=False)
    places = nodes.reshape(graph, line, value.shape)
    padded = _padded(graph, [value, places], fillings, windows)
    chosen = graph.expand(_slide(graph, padded, windows, choose)[1])
    updates = nodes.cast(graph, source, made_of)
    flat = [graph.expand(nodes.reshape(graph, v, [product(v.shape)])) for v in (chosen, updates)]
    data = graph.expand(nodes.cast(graph, start, made_of).broadcast_to((count,)))
    matrix, updates = (nodes.expand_dims(graph, v, [1]) for v in (data, flat[1]))
    made = graph.scatter_rows(
        graph.expand(matrix), flat[0], graph.expand(updates), reducer, unique=False
    )
    return nodes.cast(graph, nodes.reshape(graph, made, value.shape), source.dtype)


RULES = {
    "stablehlo.reduce_window": Rule(_reduce_window, WINDOW_ATTRIBUTES),
    "stablehlo.select_and_scatter": Rule(
        _select_and_scatter, ("padding", "window_dimensions", "window_strides")
    ),
}
