"""Slices written into an array, or added to it, at many places: as rows of a matrix."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bridge.core_ops.regions import reducer_of
from bridge.core_ops.slicing import start_vectors
from bridge.core_ops.stablehlo_operation import Operation, Region, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, of_size
from xla_call_module.size_polynomials import Dim, Shape, product
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces

_REDUCTIONS = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "mul",
               "replace": "none"}  # fmt: skip
_OF_BOOLS = {"add": "maximum", "and": "minimum", "maximum": "maximum", "minimum": "minimum",
             "multiply": "minimum", "or": "maximum"}  # fmt: skip


def _scatter(graph: TensorGraph, op: Operation) -> Value | Sequence[Value]:
    count = len(op.operands) // 2
    values, indices, updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
    places = SlicePlaces.of_scatter(op)
    layout = _layout_of(places, values[0], indices, updates[0])
    starts = start_vectors(graph, indices, places)
    unique = op.flag("unique_indices")
    every = [_rows(graph, layout, starts, update, unique=unique) for update in updates]
    reducer = reducer_of(op.regions[0])
    if count == 1 and (value := _at_once(graph, reducer, values[0], every[0])) is not None:
        return value
    if not every[0].unique:
        return _in_order(graph, op.regions[0], values, every)
    pairs = list(zip(values, every, strict=True))
    new = [rows.write(graph, value, rows.updates, "none") for value, rows in pairs]
    computed = op.regions[0].apply(graph, [*values, *new])
    touched = every[0].touched(graph, values[0])
    return [nodes.where(graph, touched, *pair) for pair in zip(computed, values, strict=True)]


def _at_once(graph: TensorGraph, reducer: str, value: Value, rows: _Rows) -> Value | None:
    """The array after all updates, by an operation of the target; None where it has none."""
    if value.dtype == bool and reducer in _OF_BOOLS:
        return _of_bools(graph, value, rows, _OF_BOOLS[reducer])
    if reducer in ("maximum", "minimum") and value.is_float:
        return _extreme(graph, value, rows, _REDUCTIONS[reducer])
    if reducer in _REDUCTIONS:
        return rows.write(graph, value, rows.updates, _REDUCTIONS[reducer])
    return None


def _in_order(
    graph: TensorGraph, region: Region, values: Sequence[Value], every: Sequence[_Rows]
) -> list[Value]:
    """Return the array after updates one by one, for regions that are no reduction."""
    pairs = list(zip(values, every, strict=True))
    matrices = [rows.matrix(graph, value) for value, rows in pairs]
    updates = [rows.updates for rows in every]
    made = _update_in_order(graph, region, matrices, every[0].index, updates)
    return [rows.array(graph, m, v) for (v, rows), m in zip(pairs, made, strict=True)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Updates as rows of a matrix, and the row of the array, as a matrix, that each is for.

    Attributes:
        order: the dimensions of the array, with those that make a row last.
        row_rank: the number of dimensions that make a row.
        index: the number of the array's row for each update, a vector; the number of rows for an
            update that is dropped.
        updates: the updates, a matrix.
        unique: whether no row is there twice, but for those that are dropped.
        in_bounds: whether nothing is dropped.
    """

    order: tuple[int, ...]
    row_rank: int
    index: Value
    updates: Value
    unique: bool
    in_bounds: bool

    def write(self, graph: TensorGraph, value: Value, updates: Value, reduction: str) -> Value:
        """The array with the updates in it, or combined with what is there."""
        matrix = self._combine(graph, self.matrix(graph, value), updates, reduction)
        return self.array(graph, matrix, value)

    def matrix(self, graph: TensorGraph, value: Value) -> Value:
        """The array as rows, and one row more for what is dropped."""
        ordered = nodes.transpose(graph, graph.expand(value), self.order)
        count = product(ordered.shape[: len(self.order) - self.row_rank])
        row = self.updates.shape[1]
        matrix = graph.expand(nodes.reshape(graph, ordered, (count, row)))
        if self.in_bounds:
            return matrix
        ends = graph.vector([0, 0, 1, 0])
        return graph.node("Pad", [matrix, ends], shape=(count + 1, row))

    def array(self, graph: TensorGraph, matrix: Value, value: Value) -> Value:
        """Return rows as an array like the one that they were made of."""
        shape = [value.shape[axis] for axis in self.order]
        count = product(shape[: len(self.order) - self.row_rank])
        if not self.in_bounds:
            matrix = nodes.slice_along(graph, matrix, 0, 0, count)
        whole = nodes.reshape(graph, matrix, shape)
        return nodes.transpose(graph, whole, [self.order.index(a) for a in range(value.rank)])

    def _combine(self, graph: TensorGraph, matrix: Value, updates: Value, reduction: str) -> Value:
        return graph.scatter_rows(
            matrix, self.index, graph.expand(updates), reduction, unique=self.unique
        )

    def touched(self, graph: TensorGraph, value: Value) -> Value:
        """Return whether there is an update for each element."""
        nothing = nodes.constant(False, bool).broadcast_to(value.shape)
        every = nodes.constant(True, bool).broadcast_to(self.updates.shape)
        return self.write(graph, nothing, every, "none")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The dimensions of an array and of its updates by their use.

    Attributes:
        places: the dimension numbers of the scatter.
        array: the shape of the array.
        batch: the number of updates along each dimension that tells them apart.
        extents: the size of an update along each dimension of the array.
        row: the dimensions of the array along which an update is as large as the array.
        selected: the other ones.
        wide: those among them that updates have, too.
        order: the dimensions of the updates: that tell them apart, `wide`, `row`.
    """

    places: SlicePlaces
    array: Shape
    batch: Shape
    extents: Shape
    row: tuple[int, ...]
    selected: tuple[int, ...]
    wide: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def elements(self) -> Shape:
        """Return the number of rows that are written, along each dimension."""
        return (*self.batch, *(self.extents[axis] for axis in self.wide))


def _layout_of(places: SlicePlaces, value: Value, indices: Value, updates: Value) -> _Layout:
    batch = tuple(indices.shape[axis] for axis in places.index_axes(indices.rank))
    positions = places.positions(value.rank, updates.rank)
    windows = places.window_axes(value.rank)
    extents = [
        updates.shape[positions[axis]] if axis in windows else 1 for axis in range(value.rank)
    ]
    row = [axis for axis in windows if extents[axis] == value.shape[axis]]
    selected = [axis for axis in range(value.rank) if axis not in row]
    wide = [axis for axis in selected if axis in windows]
    apart = places.other_axes(updates.rank)
    order = (*apart, *(positions[axis] for axis in (*wide, *row)))
    return _Layout(
        places=places,
        array=value.shape,
        batch=batch,
        extents=tuple(extents),
        row=tuple(row),
        selected=tuple(selected),
        wide=tuple(wide),
        order=order,
    )


def _rows(
    graph: TensorGraph, layout: _Layout, starts: Value, updates: Value, *, unique: bool
) -> _Rows:
    """Return the updates at start vectors as rows of a matrix."""
    columns = {
        axis: _column(graph, starts, number) for number, axis in enumerate(layout.places.mapped)
    }
    index = _linear_index(graph, layout, columns)
    fits = _fits(graph, layout, columns)
    if fits is not None:
        inside = nodes.broadcast_in_dim(graph, fits, range(len(layout.batch)), layout.elements)
        count = product(layout.array[axis] for axis in layout.selected)
        index = nodes.where(graph, inside, index, of_size(count))
    count = product(layout.elements)
    ordered = nodes.transpose(graph, updates, layout.order)
    row = product(layout.array[axis] for axis in layout.row)
    return _Rows(
        order=(*layout.selected, *layout.row),
        row_rank=len(layout.row),
        index=nodes.reshape(graph, graph.expand(index.broadcast_to(layout.elements)), (count,)),
        updates=nodes.reshape(graph, ordered, (count, row)),
        unique=unique or product(layout.batch) == 1,
        in_bounds=fits is None,
    )


def _column(graph: TensorGraph, starts: Value, number: int) -> Value:
    """Return one component of all start vectors."""
    last = starts.rank - 1
    if starts.shape[last] != 1:
        starts = nodes.slice_along(graph, starts, last, number, number + 1)
    return nodes.squeeze(graph, starts, [last])


def _linear_index(graph: TensorGraph, layout: _Layout, columns: Mapping[int, Value]) -> Value:
    """The number of each element's row in the array, if that is one matrix."""
    total = nodes.constant(0, np.int64)
    stride: Dim = 1
    for axis in reversed(layout.selected):
        for part in _parts(graph, layout, columns, axis):
            scaled = nodes.elementwise(graph, "Mul", part, of_size(stride))
            total = scaled if total.scalar == 0 else nodes.elementwise(graph, "Add", total, scaled)
        stride = stride * layout.array[axis]
    return total


def _parts(
    graph: TensorGraph, layout: _Layout, columns: Mapping[int, Value], axis: int
) -> list[Value]:
    """Return the terms of which the index along one dimension is the sum."""
    places, shape = layout.places, layout.elements
    parts = []
    if axis in columns:
        parts.append(nodes.broadcast_in_dim(graph, columns[axis], range(len(layout.batch)), shape))
    if axis in places.batching:
        at = places.leading[places.batching.index(axis)]
        line = nodes.count_up(graph, layout.batch[at])
        parts.append(nodes.broadcast_in_dim(graph, line, [at], shape))
    if axis in layout.wide:
        at = len(layout.batch) + layout.wide.index(axis)
        line = nodes.count_up(graph, layout.extents[axis])
        parts.append(nodes.broadcast_in_dim(graph, line, [at], shape))
    return parts


def _fits(graph: TensorGraph, layout: _Layout, columns: Mapping[int, Value]) -> Value | None:
    """Return whether each update is within the array; None where all are known to be."""
    conditions = []
    for axis, column in columns.items():
        room = of_size(layout.array[axis] - layout.extents[axis])
        bounds: list[tuple[str, nodes.Operand]] = [("GreaterOrEqual", 0), ("LessOrEqual", room)]
        conditions += [nodes.elementwise(graph, name, column, bound) for name, bound in bounds]
    open_ = [value for value in conditions if value.array is None or not value.array.all()]
    if not open_:
        return None
    return functools.reduce(lambda a, b: nodes.elementwise(graph, "And", a, b), open_)


def _of_bools(graph: TensorGraph, value: Value, rows: _Rows, reducer: str) -> Value:
    """Return bools after updates, as 0 and 1 of which the greatest or least is taken."""
    numbers, updates = (nodes.cast(graph, x, np.uint8) for x in (value, rows.updates))
    written = rows.write(graph, numbers, updates, _REDUCTIONS[reducer])
    return nodes.cast(graph, written, bool)


def _extreme(graph: TensorGraph, value: Value, rows: _Rows, reduction: str) -> Value:
    """The greatest or the least, which is NaN where any is; the runtime passes over some NaNs."""
    if not graph.exact:
        return rows.write(graph, graph.expand(value), graph.expand(rows.updates), reduction)
    bottom = -np.inf if reduction == "max" else np.inf
    numbers, flags = zip(*(_split(graph, x, bottom) for x in (value, rows.updates)), strict=True)
    extreme = rows.write(graph, numbers[0], numbers[1], reduction)
    is_nan = nodes.cast(graph, rows.write(graph, flags[0], flags[1], "max"), bool)
    return nodes.where(graph, is_nan, np.nan, extreme)


def _split(graph: TensorGraph, value: Value, bottom: float) -> tuple[Value, Value]:
    """A value without its NaNs, and where they were as 0 and 1."""
    value = graph.expand(value)
    is_nan = nodes.elementwise(graph, "IsNaN", value)
    return nodes.where(graph, is_nan, bottom, value), nodes.cast(graph, is_nan, np.uint8)


def _update_in_order(
    graph: TensorGraph,
    region: Region,
    matrices: Sequence[Value],
    index: Value,
    updates: Sequence[Value],
) -> list[Value]:
    """Return matrices whose rows a loop replaces, one by one, by what a region makes of them.

    The region is a function of an element of each matrix, and of an element of each update; `index`
    has the row for each row of the updates.
    """

    def step(body: TensorGraph, number: Value, carried: list[Value]) -> list[Value]:
        this = nodes.reshape(body, number, (1,))
        place = nodes.gather(body, index, this, 0)
        old = [nodes.gather(body, matrix, place, 0) for matrix in carried]
        new = [nodes.gather(body, update, this, 0) for update in updates]
        updated = region.apply(body, [*old, *new])
        rows = [
            body.expand(row.broadcast_to(before.shape))
            for row, before in zip(updated, old, strict=True)
        ]
        return [
            body.scatter_rows(matrix, place, row, "none", unique=True)
            for matrix, row in zip(carried, rows, strict=True)
        ]

    return graph.loop(index.shape[0], matrices, step)


RULES = {
    "stablehlo.scatter": Rule(
        _scatter,
        ("indices_are_sorted", "scatter_dimension_numbers", "unique_indices"),
    ),
}
