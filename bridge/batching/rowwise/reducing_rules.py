"""Operations that take many elements together: sums, windows, sorts, products, convolutions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from bridge.batching.rowwise.row_operation import RowOperation, Rule, unknown_size
from bridge.batching.rowwise.row_value import BatchValue, Rows
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions

__all__ = ["RULES", "along_last", "approx_top_k", "dynamic_reduce_window", "linear_algebra"]


def _reduce(op: RowOperation) -> list[BatchValue]:
    axes, count = op.integers("dimensions"), len(op.operands) // 2
    values = op.data(*range(count))
    op.plain(*range(count, 2 * count))
    rows = op.joined(values)
    if rows is not None and rows.axis in axes:
        raise op.mixed("takes all rows of the batch together")
    kept = [axis for axis in range(values[0].rank) if axis not in axes]
    place = None if rows is None else rows.at(kept.index(rows.axis))
    shape = op.shape_of(values)
    return [op.value([shape[axis] for axis in kept], place, index=i) for i in range(count)]


def _sort(op: RowOperation) -> list[BatchValue]:
    op.data()
    rows = op.joined()
    if rows is not None and rows.axis == op.integer("dimension"):
        raise op.mixed("sorts the rows of the batch")
    shape = op.shape_of(op.operands)
    return [op.value(shape, _moved(rows), index=i) for i in range(len(op.operands))]


def _moved(rows: Rows | None) -> Rows | None:
    """The rows of a computed value, which need not be constant any more."""
    return None if rows is None else Rows(rows.axis, rows.outer, rows.inner)


def _reduce_window(op: RowOperation) -> list[BatchValue]:
    rank, count = op.operands[0].rank, len(op.operands) // 2
    ones = (1,) * rank
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    window = [*(op.integers(name, ones) for name in names), *op.padding(rank)]
    op.plain(*range(count, 2 * count))
    return _windowed(op, op.data(*range(count)), window)


def dynamic_reduce_window(op: RowOperation) -> list[BatchValue]:
    """A window whose sizes are operands: dimensions, strides, two dilations and padding."""
    padding = op.sizes(6)
    window = [*(op.sizes(i) for i in (2, 3, 4, 5)), padding[::2], padding[1::2]]
    op.plain(1)
    if any(op.batch.is_in(dim) for dims in window for dim in dims):
        raise op.mixed("has a window of the size of the batch")
    return _windowed(op, op.data(0), window)


def _windowed(
    op: RowOperation, values: Sequence[BatchValue], window: Sequence[Sequence[Dim]]
) -> list[BatchValue]:
    rows = op.joined(values)
    is_unchanged = [moves == (1, 1, 1, 1, 0, 0) for moves in zip(*window, strict=True)]
    if rows is not None and not is_unchanged[rows.axis]:
        raise op.mixed("has a window over the rows of the batch")
    sizes = [
        dim if is_unchanged[axis] else unknown_size(op.place, axis)
        for axis, dim in enumerate(op.shape_of(values))
    ]
    return [op.value(sizes, _moved(rows), index=i) for i in range(len(op.types))]


def _select_and_scatter(op: RowOperation) -> BatchValue:
    rank = op.operands[0].rank
    values = op.data(0, 1)
    op.plain(2)
    rows = op.joined(values)
    sizes = [op.integers(name, (1,) * rank) for name in ("window_dimensions", "window_strides")]
    window = [*sizes, *op.padding(rank)]
    if rows is not None and [numbers[rows.axis] for numbers in window] != [1, 1, 0, 0]:
        raise op.mixed("has a window over the rows of the batch")
    return op.value(op.operands[0].shape, _moved(rows))


def _dot_general(op: RowOperation) -> BatchValue:
    left, right = op.data(0, 1)
    numbers = op.dimension_numbers()
    names = ("batching_dimensions", "contracting_dimensions")
    (batch_l, contract_l), (batch_r, contract_r) = (
        [tuple(getattr(numbers, f"{side}_{name}")) for name in names] for side in ("lhs", "rhs")
    )
    free_l = [a for a in range(left.rank) if a not in (*batch_l, *contract_l)]
    free_r = [a for a in range(right.rank) if a not in (*batch_r, *contract_r)]
    places: list[BatchValue] = []
    for value, batch, free, offset in (
        (left, batch_l, free_l, len(batch_l)),
        (right, batch_r, free_r, len(batch_l) + len(free_l)),
    ):
        if value.rows is None:
            places.append(BatchValue((), iteration=value.iteration))
            continue
        axis = value.rows.axis
        if axis not in batch and axis not in free:
            raise op.mixed("takes all rows of the batch together")
        at = batch.index(axis) if axis in batch else offset + free.index(axis)
        places.append(BatchValue((), _moved(value.rows.at(at)), iteration=value.iteration))
    is_free = [
        value.rows is not None and value.rows.axis in free
        for value, free in ((left, free_l), (right, free_r))
    ]
    if any(is_free) and left.rows is not None and right.rows is not None:
        raise op.mixed("multiplies each row of the batch with all others")
    shape = [
        *(left.shape[a] for a in batch_l),
        *(left.shape[a] for a in free_l),
        *(right.shape[a] for a in free_r),
    ]
    return op.value(shape, op.joined(places))


def _convolution(op: RowOperation) -> BatchValue:
    value, _ = op.data(0, 1)
    op.plain(1, *range(2, len(op.operands)))
    inputs, kernels, outputs = read_convolution_dimensions(op)
    rows = None
    if value.rows is not None:
        if value.rows.axis != inputs.index("b") or op.integer("batch_group_count", 1) != 1:
            raise op.mixed("takes all rows of the batch together")
        rows = _moved(value.rows.at(outputs.index("b")))
    known: dict[str, Dim] = {
        "b": value.shape[inputs.index("b")],
        "f": op.operands[1].shape[kernels.index("o")],
    }
    return op.value([known.get(n, unknown_size(op.place, i)) for i, n in enumerate(outputs)], rows)


def _batch_norm_inference(op: RowOperation) -> BatchValue:
    (value, *_) = op.data()
    op.plain(*range(1, len(op.operands)))
    if value.rows is not None and value.rows.axis == op.integer("feature_index"):
        raise op.mixed("takes all rows of the batch for features")
    return op.value(value.shape, _moved(value.rows))


def _last_axes(op: RowOperation, count: int) -> Rows | None:
    """Return the place of the rows in operands that are computed along their last dimensions.

    Raises:
        RowsMixedError: it is one of these.
    """
    op.data()
    rows = op.joined()
    if rows is not None and rows.axis >= max(value.rank for value in op.operands) - count:
        raise op.mixed("takes all rows of the batch together")
    return _moved(rows)


def _fft(op: RowOperation) -> BatchValue:
    (value,) = op.operands
    count = len(op.integers("fft_length"))
    shape = [
        dim if axis < value.rank - count else unknown_size(op.place, axis)
        for axis, dim in enumerate(value.shape)
    ]
    return op.value(shape, _last_axes(op, count))


def _batched(op: RowOperation, count: int, shapes: Sequence[Sequence[Dim]]) -> list[BatchValue]:
    rows = _last_axes(op, count)
    return [op.value(shape, rows, index=i) for i, shape in enumerate(shapes)]


def linear_algebra(op: RowOperation) -> list[BatchValue]:
    """Return results of matrices, whose rows and columns are the last two dimensions.

    Operands that are no arrays of the same leading dimensions say the shapes of the results.
    """
    arrays = tuple(v for v in op.operands if v.rank >= 2 or v.rows is not None)
    value = max(arrays, key=lambda array: array.rank, default=BatchValue(()))
    if value.rank < 2:
        raise op.mixed("is not known to treat each row of the batch for itself")
    op = dataclasses.replace(op, operands=arrays)
    leading = value.shape[:-2]
    shapes = []
    for index, known in enumerate(op.types):
        behind = known[len(leading) :]
        extra = [
            unknown_size(op.place, 8 * index + i) if d is None else d for i, d in enumerate(behind)
        ]
        shapes.append([*leading, *extra])
    return _batched(op, 2, shapes)


def along_last(op: RowOperation) -> list[BatchValue]:
    """Return the largest elements, which are fewer along the last dimension."""
    if len(op.operands) > 1:
        op.plain(*range(1, len(op.operands)))
    return _largest(op, op.data(0), op.operands[0].rank - 1)


def approx_top_k(op: RowOperation) -> list[BatchValue]:
    """The largest elements along a dimension, with their places, roughly."""
    match = re.search(r"reduction_dim = (\d+)", op.text("mhlo.backend_config"))
    op.plain(2, 3)
    if match is None:
        raise op.mixed("takes all rows of the batch together")
    return _largest(op, op.data(0, 1), int(match[1]))


def _largest(op: RowOperation, values: Sequence[BatchValue], axis: int) -> list[BatchValue]:
    rows = op.joined(values)
    if rows is not None and rows.axis == axis:
        raise op.mixed("takes all rows of the batch together")
    shape = list(op.shape_of(values))
    shape[axis] = unknown_size(op.place, axis)
    return [op.value(shape, _moved(rows), index=i) for i in range(len(op.types))]


RULES: Mapping[str, Rule] = {
    "chlo.top_k": along_last,
    "stablehlo.batch_norm_inference": _batch_norm_inference,
    "stablehlo.cholesky": lambda op: _batched(op, 2, [op.operands[0].shape]),
    "stablehlo.convolution": _convolution,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_conv": _convolution,
    "stablehlo.fft": _fft,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
    "stablehlo.triangular_solve": lambda op: _batched(op, 2, [op.operands[1].shape]),
}
