"""Operations that look something up, or put something somewhere, at places that are computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bridge.batching.rowwise.row_operation import RowOperation, Rule
from bridge.batching.rowwise.row_value import BatchValue, Rows, elements_of, iteration_of
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces

__all__ = ["RULES"]


def _gather(op: RowOperation) -> BatchValue:
    is_dynamic = op.name == "stablehlo.dynamic_gather"
    sizes: Sequence[Dim] = op.sizes(2) if is_dynamic else op.integers("slice_sizes")
    places = SlicePlaces.of_gather(op)
    value, indices = op.operands[:2]
    if (element := _known_element(op, places)) is not None:
        return element
    op.data(0)
    rank = len(op.types[0])
    others, index_axes = places.other_axes(rank), places.index_axes(indices.rank)
    shape: list[Dim] = [0] * rank
    for axis, source in zip(others, index_axes, strict=True):
        shape[axis] = indices.shape[source]
    for axis, source in zip(places.window, places.window_axes(value.rank), strict=True):
        shape[axis] = sizes[source]
    rows = _rows_of_gather(op, places, sizes)
    if rows is None and any(map(op.batch.is_in, sizes)):
        raise op.mixed("takes as many elements as the batch has rows", is_size=True)
    return op.value(shape, rows)


def _known_element(op: RowOperation, places: SlicePlaces) -> BatchValue | None:
    """Return one size of a vector of sizes, at an index that is known."""
    value, indices = op.operands[:2]
    if value.rank != 1 or value.dims is None or indices.dims is None or len(indices.dims) != 1:
        return None
    (at,) = indices.dims
    if not isinstance(at, int) or places.window or not 0 <= at < len(value.dims):
        return None
    array = np.empty(1, object)
    array[0] = value.dims[at]
    shape = tuple(dim or 0 for dim in op.types[0])
    return op.value(shape, elements=elements_of(array.reshape((1,) * len(shape))))


def _rows_of_gather(op: RowOperation, places: SlicePlaces, sizes: Sequence[Dim]) -> Rows | None:
    """Return the place of the rows in the result.

    Raises:
        RowsMixedError: a row of it may be looked up in other rows.
    """
    value, indices = op.operands[:2]
    rank = len(op.types[0])
    targets = dict(zip(places.index_axes(indices.rank), places.other_axes(rank), strict=True))
    looked_up = indices.rows
    if looked_up is not None and looked_up.axis == places.vector_axis:
        raise op.mixed("takes rows of the batch together for an index")
    if value.rows is None:
        _refuse_batch(op, indices)
        return None if looked_up is None else _plain(looked_up.at(targets[looked_up.axis]))
    axis = value.rows.axis
    if value.iteration or indices.iteration:
        raise op.mixed("takes other rows of the batch")
    if axis in places.batching:
        _refuse_batch(op, indices)
        source = places.index_batching[places.batching.index(axis)]
        _check_same(op, value.rows, looked_up, source)
        return _plain(value.rows.at(targets[source]))
    if looked_up is None and sizes[axis] == value.shape[axis] and axis not in places.dropped:
        _refuse_batch(op, indices)
        at = places.window[places.window_axes(value.rank).index(axis)]
        return _plain(value.rows.at(at))
    own = _own_axis(op, indices, places, axis)
    if own is None:
        raise op.mixed("takes other rows of the batch")
    _refuse_batch(op, indices)
    if sizes[axis] != 1 or value.rows != Rows(axis, is_constant=value.rows.is_constant):
        raise op.mixed("takes other rows of the batch")
    return Rows(targets[own])


def _plain(rows: Rows) -> Rows:
    return dataclasses.replace(rows, is_constant=False)


def _check_same(op: RowOperation, rows: Rows, others: Rows | None, axis: int) -> None:
    """Refuse dimensions that go along with each other with rows in different places."""
    if others is None:
        return
    layouts = {(one.outer, one.inner) for one in (rows, others) if not one.is_constant}
    if others.axis != axis or len(layouts) > 1:
        raise op.mixed("takes rows of the batch in different dimensions")


def _refuse_batch(op: RowOperation, indices: BatchValue) -> None:
    """Refuse the size of the batch in an index."""
    if op.batch.is_in_elements(indices):
        raise op.mixed("looks up where the size of the batch says", is_size=True)


def _own_axis(op: RowOperation, indices: BatchValue, places: SlicePlaces, axis: int) -> int | None:
    """Return the dimension of the indices along which a component counts the rows.

    It is the number of each row then; None where it may be another one.
    """
    known = indices.elements
    if known is None or axis not in places.mapped:
        return None
    array = known.array
    if places.vector_axis < indices.rank and array.shape[places.vector_axis] > 1:
        component = places.mapped.index(axis)
        array = array.take([component], axis=places.vector_axis)
    rows, size = indices.rows, op.batch.size
    if not isinstance(size, int):
        is_own = all(dim == op.batch.position for dim in array.flat)
        return rows.axis if is_own and rows and (rows.outer, rows.inner) == (1, 1) else None
    # The same numbers for all batches of one size.
    candidates = places.index_axes(indices.rank) if rows is None else [rows.axis]
    for candidate in candidates:
        numbers = np.moveaxis(array, candidate, -1)
        if numbers.shape[-1] == size and (numbers == np.arange(size)).all():
            return candidate
    return None


def _scatter(op: RowOperation) -> list[BatchValue]:
    count = (len(op.operands) - 1) // 2
    values, indices, updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
    op.data(*range(count), *range(count + 1, len(op.operands)))
    _refuse_batch(op, indices)
    places = SlicePlaces.of_scatter(op)
    rows, update = op.joined(values), op.joined(updates)
    place = _rows_of_scatter(op, places, indices, rows, update, values[0], updates[0])
    shape = op.shape_of(values)
    return [op.value(shape, place, index=i) for i in range(count)]


def _rows_of_scatter(
    op: RowOperation,
    places: SlicePlaces,
    indices: BatchValue,
    rows: Rows | None,
    update: Rows | None,
    value: BatchValue,
    new: BatchValue,
) -> Rows | None:
    """Return the place of the rows in the result.

    Raises:
        RowsMixedError: rows may be put into other rows, or where all share something.
    """
    looked_up = indices.rows
    if rows is None and update is None and looked_up is None:
        return None
    if rows is None:
        rows = _assumed_rows(op, places, looked_up, update, value)
    if op.iteration:
        raise op.mixed("puts something into other rows of the batch")
    axis = rows.axis
    targets = dict(zip(places.index_axes(indices.rank), places.other_axes(new.rank), strict=True))
    if axis in places.batching:
        source = places.index_batching[places.batching.index(axis)]
        _check_same(op, rows, looked_up, source)
        _check_same(op, rows, update, targets[source])
        return _plain(rows)
    window = places.window_axes(value.rank)
    if axis in window and looked_up is None:
        at = places.window[window.index(axis)]
        if new.shape[at] == value.shape[axis]:
            _check_same(op, rows, update, at)
            return _plain(rows)
    own = _own_axis(op, indices, places, axis)
    if own is None or (rows.outer, rows.inner) != (1, 1):
        raise op.mixed("puts something into other rows of the batch")
    if axis in window and new.shape[places.window[window.index(axis)]] != 1:
        raise op.mixed("puts something into other rows of the batch")
    _check_same(op, rows, update, targets[own])
    return _plain(rows)


def _assumed_rows(
    op: RowOperation,
    places: SlicePlaces,
    looked_up: Rows | None,
    update: Rows | None,
    value: BatchValue,
) -> Rows:
    """Return the place of rows in an array that is the same for all batches of one size.

    Raises:
        RowsMixedError: nowhere.
    """
    if not op.batch.names and looked_up is not None and looked_up.axis in places.index_batching:
        return looked_up.at(places.batching[places.index_batching.index(looked_up.axis)])
    if not op.batch.names and update is not None and update.axis in places.window:
        return update.at(places.window_axes(value.rank)[places.window.index(update.axis)])
    raise op.mixed("puts rows of the batch into what all of them share")


def _dynamic_slice(op: RowOperation) -> BatchValue:
    value, sizes = op.data(0)[0], op.integers("slice_sizes")
    _check_starts(op, range(1, len(op.operands)))
    rows = value.rows
    if rows is not None and sizes[rows.axis] != value.shape[rows.axis]:
        iteration = iteration_of(op.batch, op.operands[1 + rows.axis].scalar, rows)
        if iteration is None or sizes[rows.axis] != 1:
            raise op.mixed("takes some rows of the batch out of it")
        return dataclasses.replace(op.value(sizes), iteration=iteration)
    return op.value(sizes, rows)


def _check_starts(op: RowOperation, indices: Sequence[int]) -> None:
    if any(op.batch.is_in_elements(op.operands[index]) for index in indices):
        raise op.mixed("begins where the size of the batch says", is_size=True)


def _dynamic_update_slice(op: RowOperation) -> BatchValue:
    value, new = op.data(0, 1)
    _check_starts(op, range(2, len(op.operands)))
    rows = value.rows
    if any(start.iteration or start.rows for start in op.operands[2:]) and rows is not None:
        raise op.mixed("puts something into other rows of the batch")
    if rows is not None and new.shape[rows.axis] != value.shape[rows.axis]:
        iteration = iteration_of(op.batch, op.operands[2 + rows.axis].scalar, rows)
        own = iteration is not None and new.iteration in (iteration, None) and not value.iteration
        if not own or new.shape[rows.axis] != 1 or new.rows is not None:
            raise op.mixed("puts something into other rows of the batch")
        kept = value.origin if value.origin is not None and value.origin[0] == iteration else None
        return BatchValue(value.shape, _plain(rows), origin=kept)
    if new.rows is not None and new.shape[new.rows.axis] != value.shape[new.rows.axis]:
        raise op.mixed("puts rows of the batch into what all of them share")
    return op.value(value.shape, op.joined([value, new]))


RULES: Mapping[str, Rule] = {
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
}
