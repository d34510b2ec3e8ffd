"""Operations that put elements elsewhere: shapes, slices, padding, concatenation, counting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.batching.rowwise.elementwise_rules import elements_or_none
from bridge.batching.rowwise.row_operation import RowOperation, Rule
from bridge.batching.rowwise.row_value import (
    BatchValue,
    Elements,
    Rows,
    elements_of,
    find_rows,
    iteration_of,
)
from xla_call_module.size_polynomials import Dim, product

__all__ = ["RULES"]

# A constant of more elements says no sizes.
_MAX_SIZES = 64


def _constant(op: RowOperation) -> BatchValue:
    shape = tuple(dim or 0 for dim in op.types[0])
    if not op.element.lstrip("us").startswith("i"):
        return BatchValue(shape)
    attribute = op.raw.attributes["value"]
    if not getattr(attribute, "is_splat", True) and math.prod(shape) > _MAX_SIZES:
        return BatchValue(shape)
    return BatchValue(shape, elements=_read(attribute, shape))


def _read(attribute: Any, shape: tuple[Any, ...]) -> Elements | None:
    """The elements of a constant; None for integers of few bits, which jaxlib does not read."""
    try:
        if attribute.is_splat:
            return Elements((1,) * len(shape), (int(attribute.get_splat_value().value),))
        array = np.asarray(attribute)
    except (AttributeError, TypeError, ValueError):
        return None
    return elements_of(np.array([int(x) for x in array.flat], object).reshape(shape))


def _iota(op: RowOperation) -> BatchValue:
    """Return 0, 1, 2, … along one dimension."""
    shape = op.target_shape(0)
    axis, rows = op.integer("iota_dimension"), _batch_rows(op, shape)
    is_index = op.element in ("i32", "i64", "ui32", "ui64")
    if rows is None or rows.axis != axis:
        size = shape[axis]
        numbers = np.arange(size if isinstance(size, int) and size == op.batch.size else 0)
        grid = [len(numbers) if k == axis else 1 for k in range(len(shape))]
        known = elements_of(numbers.astype(object).reshape(grid)) if is_index else None
        return op.value(shape, rows, elements=known if len(numbers) else None)
    # Along several batches in a row the second one's numbers would depend on the batch's size.
    elements = None
    if rows.inner == 1 and is_index:
        elements = Elements((1,) * len(shape), (op.batch.position,))
    return op.value(shape, Rows(axis, 1, rows.inner), elements=elements)


def _batch_rows(op: RowOperation, shape: Sequence[Dim]) -> Rows | None:
    """Return the place of rows in a shape of which all elements are alike; None in a static shape.

    Raises:
        RowsMixedError: there is more than one dimension for them, or none.
    """
    axes = [axis for axis, dim in enumerate(shape) if op.batch.is_in(dim)]
    if not axes:
        return None
    factor = op.batch.factor(shape[axes[0]])
    if len(axes) > 1 or factor is None:
        raise op.mixed("has a shape in which the batch is more than one dimension")
    return Rows(axes[0], 1, factor, is_constant=True)


def _broadcast(op: RowOperation) -> BatchValue:
    shape = op.target_shape(1)
    value, axes = op.operands[0], op.integers("broadcast_dimensions")
    rows = None if value.rows is None else value.rows.at(axes[value.rows.axis])
    others = [1 if rows is not None and axis == rows.axis else d for axis, d in enumerate(shape)]
    repeated = _batch_rows(op, others)
    if rows is not None and repeated is not None:
        raise op.mixed("repeats rows for each row of the batch")
    elements = None
    if value.elements is not None:
        grid = [1] * len(shape)
        for axis, size in zip(axes, value.elements.shape, strict=True):
            grid[axis] = size
        order = np.argsort(axes)
        array = value.elements.array.transpose(order).reshape(grid)
        elements = elements_of(array)
    return op.value(shape, rows or repeated, elements=elements)


def _reshape(op: RowOperation) -> BatchValue:
    shape = op.target_shape(1)
    value, rows = op.operands[0], op.operands[0].rows
    if rows is not None and rows.is_constant and op.batch.names:
        rows = _batch_rows(op, shape)
    elif rows is not None:
        before = product(value.shape[: rows.axis]) * rows.outer
        rows = find_rows(op.batch, shape, before)
        if rows is None and 0 not in shape:
            raise op.mixed("puts rows of the batch together with others")
    elements = _reshaped(value, shape)
    if elements is None:
        op.data(0)
    return op.value(shape, rows, elements=elements)


def _reshaped(value: BatchValue, shape: Sequence[Dim]) -> Elements | None:
    if value.elements is None:
        return None
    if len(value.elements.dims) == 1:
        return Elements((1,) * len(shape), value.elements.dims)
    if value.dims is not None and all(isinstance(dim, int) for dim in shape):
        sizes: Any = shape
        array = np.empty(len(value.dims), object)
        array[:] = value.dims
        return elements_of(array.reshape(sizes))
    before = [(d, n) for d, n in zip(value.shape, value.elements.shape, strict=True) if d != 1]
    after = [axis for axis, dim in enumerate(shape) if dim != 1]
    if [dim for dim, _ in before] != [shape[axis] for axis in after]:
        return None
    grid = [1] * len(shape)
    for axis, (_, size) in zip(after, before, strict=True):
        grid[axis] = size
    return Elements(tuple(grid), value.elements.dims)


def _transpose(op: RowOperation) -> BatchValue:
    value, order = op.operands[0], op.integers("permutation")
    rows = None if value.rows is None else value.rows.at(order.index(value.rows.axis))
    elements = None
    if value.elements is not None:
        elements = elements_of(value.elements.array.transpose(order))
    return op.value([value.shape[axis] for axis in order], rows, elements=elements)


def _concatenate(op: RowOperation) -> BatchValue:
    axis, rows = op.integer("dimension"), op.joined()
    if rows is not None and rows.axis == axis:
        raise op.mixed("puts something before or behind the rows of the batch")
    shape = list(op.operands[0].shape)
    total: Dim = 0
    for value in op.operands:
        total = total + value.shape[axis]
    shape[axis] = total
    if rows is None and op.batch.is_in(total):
        raise op.mixed("puts something before or behind the rows of the batch")
    elements = None
    if any(value.elements is not None for value in op.operands):
        elements = _concatenated(op, axis)
        if elements is None:
            op.data()
    return op.value(shape, rows, elements=elements)


def _concatenated(op: RowOperation, axis: int) -> Elements | None:
    grids = []
    for value in op.operands:
        size = value.shape[axis]
        if not isinstance(size, int) or size > _MAX_SIZES:
            return None
        array = elements_or_none(value)
        grids.append((array, size))
    rank = op.operands[0].rank
    common = [max(array.shape[k] for array, _ in grids) for k in range(rank)]
    whole = [
        np.broadcast_to(array, [size if k == axis else common[k] for k in range(rank)])
        for array, size in grids
    ]
    return elements_of(np.concatenate(whole, axis))


def _slice(op: RowOperation) -> BatchValue:
    bounds = [op.integers(f"{name}_indices") for name in ("start", "limit")]
    return _slice_between(op, bounds[0], bounds[1], op.integers("strides"))


def _real_dynamic_slice(op: RowOperation) -> BatchValue:
    """A slice whose bounds are computed; those that are not known must be of another dimension."""
    value = op.operands[0]
    bounds = [op.operands[i].dims or (None,) * value.rank for i in (1, 2, 3)]
    for index in (1, 2, 3):
        if op.operands[index].rows is not None or op.operands[index].iteration:
            raise op.mixed("takes rows of the batch where it expects what all rows share")
        if op.operands[index].dims is None:
            op.data(index)
    return _slice_between(op, *bounds)


def _slice_between(
    op: RowOperation,
    starts: Sequence[Dim | None],
    limits: Sequence[Dim | None],
    strides: Sequence[Dim | None],
) -> BatchValue:
    value, iteration = op.operands[0], None
    shape: list[Dim] = []
    for axis, dim in enumerate(value.shape):
        start, limit, stride = starts[axis], limits[axis], strides[axis]
        is_whole = start == 0 and limit == dim and stride == 1
        if value.rows is not None and axis == value.rows.axis and not is_whole:
            iteration = iteration_of(op.batch, start, value.rows)
            if iteration is None or start is None or limit != start + 1 or stride != 1:
                raise op.mixed("takes some rows of the batch out of it")
        shape.append(dim if is_whole else _length(op, axis, start, limit, stride))
    if iteration is not None:
        op.data(0)
        return dataclasses.replace(op.value(shape), iteration=iteration)
    elements = None
    if value.elements is not None and op.name == "stablehlo.slice":
        taken = tuple(
            slice(None) if size == 1 else slice(a, b, c)
            for size, a, b, c in zip(value.elements.shape, starts, limits, strides, strict=True)
        )
        elements = elements_of(value.elements.array[taken])
    if elements is None:
        op.data(0)
    return op.value(shape, value.rows, elements=elements)


def _length(
    op: RowOperation, axis: int, start: Dim | None, limit: Dim | None, stride: Dim | None
) -> Dim:
    """Return the length of a slice.

    Raises:
        RowsMixedError: that is not known, or depends on the size of the batch.
    """
    if any(map(op.batch.is_in, (start, limit, stride))):
        raise op.mixed("begins or ends where the size of the batch says", is_size=True)
    if (known := op.types[0][axis]) is not None:
        return known
    if start is None or limit is None or stride != 1:
        raise op.mixed("has a size that is computed of values")
    return limit - start


def _pad(op: RowOperation) -> BatchValue:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, between = (
        op.sizes(2 + number) if op.name == "stablehlo.dynamic_pad" else op.integers(name)
        for number, name in enumerate(names)
    )
    (value,) = op.data(0)
    op.plain(1)
    if any(op.batch.is_in(dim) for dim in (*low, *high, *between)):
        raise op.mixed("pads as far as the size of the batch says", is_size=True)
    shape = []
    for axis, dim in enumerate(value.shape):
        added = (low[axis], high[axis], between[axis])
        if value.rows is not None and axis == value.rows.axis and any(n != 0 for n in added):
            raise op.mixed("puts something before or behind the rows of the batch")
        inside = 0 if between[axis] == 0 else between[axis] * (dim - 1)
        shape.append(low[axis] + dim + inside + high[axis])
    return op.value(shape, value.rows)


def _reverse(op: RowOperation) -> BatchValue:
    (value,) = op.operands
    if value.rows is not None and value.rows.axis in op.integers("dimensions"):
        raise op.mixed("reverses the order of the batch")
    op.data()
    return op.value(value.shape, value.rows)


def _size(op: RowOperation) -> BatchValue:
    size = op.operands[0].shape[op.integer("dimension")]
    return BatchValue((), elements=Elements((), (size,)))


def _bitcast(op: RowOperation) -> BatchValue:
    """Return elements of other bits; the last dimension counts them where their number changes."""
    (value,) = op.data()
    rank = len(op.types[0])
    shape: list[Dim] = list(value.shape[:rank])
    if rank > value.rank:
        shape.append(op.types[0][-1] or 0)
    if value.rows is not None and value.rows.axis >= rank:
        raise op.mixed("puts rows of the batch together")
    return op.value(shape, value.rows)


RULES: Mapping[str, Rule] = {
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.constant": _constant,
    "stablehlo.dynamic_broadcast_in_dim": _broadcast,
    "stablehlo.dynamic_iota": _iota,
    "stablehlo.dynamic_pad": _pad,
    "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.get_dimension_size": _size,
    "stablehlo.iota": _iota,
    "stablehlo.pad": _pad,
    "stablehlo.real_dynamic_slice": _real_dynamic_slice,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.slice": _slice,
    "stablehlo.transpose": _transpose,
}
