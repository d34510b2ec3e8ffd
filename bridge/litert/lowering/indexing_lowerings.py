"""Gathers, scatters and dynamic slices, in the one form of each that LiteRT executes.

LiteRT's gathers die of negative indices, and its scatters write before the array for such. So every
gather takes rows of a matrix, and every scatter combines rows with some, by indices that have been
clamped or, for what a scatter drops, are beyond the last row. The scatter's kernel knows the
operations of StableHLO alone in its region.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.indexing_primitives import RULES as OF_JAX
from bridge.lifting.indexing_primitives import SCATTERS, SCATTERS_OF_BOOLS
from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftingRule
from bridge.litert.lowering.arithmetic_lowerings import is_unsigned, unsigned_order
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits
from xla_call_module.stablehlo.combiners import combiner_of
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces

_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def take_rows(rows: Any, indices: Any) -> Any:
    """Return rows of a matrix at indices, a vector of int32 that are in bounds."""
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    sizes = (1, np.shape(rows)[1])
    return lax.gather(rows, jnp.expand_dims(indices, 1), numbers, sizes, mode=_IN_BOUNDS)


def put_rows(
    rows: Any, indices: Any, updates: Any, scatter: Callable[..., Any] = lax.scatter
) -> Any:
    """Return a matrix whose rows at indices are combined with others, the first ones first."""
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return scatter(rows, jnp.expand_dims(indices, 1), updates, numbers, mode=_IN_BOUNDS)


def _columns(
    op: LoweredOperation, places: SlicePlaces, at: int
) -> tuple[dict[int, Any], tuple[Dimension, ...]]:
    """Return the component of all index vectors along each dimension that has one.

    They are signed integers, also those that are unsigned in the module.
    """
    indices = jnp.asarray(op.array(at))
    if is_unsigned(op.operand_dtype(at)):
        indices = jnp.where(indices < 0, np.iinfo(indices.dtype).max, indices)
    rank = indices.ndim
    if places.vector_axis == rank:
        indices = lax.expand_dims(indices, [rank])
    elif places.vector_axis != rank - 1:
        indices = lax.transpose(indices, [*places.index_axes(rank), places.vector_axis])
    shape = indices.shape[:-1]
    parts = {
        axis: lax.squeeze(
            lax.slice_in_dim(indices, n, n + 1, axis=indices.ndim - 1), [indices.ndim - 1]
        )
        for n, axis in enumerate(places.mapped)
    }
    for axis, leading in zip(places.batching, places.leading, strict=True):
        parts[axis] = lax.broadcasted_iota(np.int32, shape, leading)
    return parts, shape


def _flat_indices(
    shape: Sequence[Dimension],
    axes: Sequence[int],
    sizes: Sequence[Dimension],
    starts: Mapping[int, Any],
    outer: Sequence[Dimension],
) -> Any:
    """Return the index, among the elements of some dimensions, of each element of all windows."""
    wide = [axis for axis in axes if sizes[axis] != 1]
    full = (*outer, *(sizes[axis] for axis in wide))
    flat = jnp.zeros(full, np.int32)
    stride: Dimension = 1
    for axis in reversed(axes):
        if axis in starts:
            start = jnp.asarray(starts[axis]).astype(np.int32)
            flat = flat + lax.expand_dims(start, range(len(outer), len(full))) * jnp.asarray(
                stride, np.int32
            )
        if axis in wide:
            flat = flat + lax.broadcasted_iota(
                np.int32, full, len(outer) + wide.index(axis)
            ) * jnp.asarray(stride, np.int32)
        stride = stride * shape[axis]
    return flat


def _gather(op: LoweredOperation) -> Any:
    return _take(op, op.integers("slice_sizes"))


def _dynamic_gather(op: LoweredOperation) -> Any:
    return _take(op, op.dimensions(2))


def _take(op: LoweredOperation, sizes: tuple[Dimension, ...]) -> Any:
    value, places = jnp.asarray(op.array(0)), SlicePlaces.of_gather(op)
    parts, outer = _columns(op, places, 1)
    rank = value.ndim
    windows = places.window_axes(rank)
    result = _result_shape(places, outer, [sizes[axis] for axis in windows])
    if 0 in result:
        return jnp.zeros(result, value.dtype)
    indexed = sorted({*places.mapped, *places.batching})
    others = [axis for axis in range(rank) if axis not in indexed]
    value = lax.slice(
        value, [0] * rank, [value.shape[n] if n in indexed else sizes[n] for n in range(rank)]
    )
    shape = value.shape
    starts = {axis: jnp.clip(part, 0, shape[axis] - sizes[axis]) for axis, part in parts.items()}
    flat = _flat_indices(shape, indexed, sizes, starts, outer)
    rows = lax.transpose(value, (*indexed, *others)).reshape(
        math.prod(shape[n] for n in indexed), math.prod(shape[n] for n in others)
    )
    taken = take_rows(rows, flat.reshape(-1))
    inner = [axis for axis in windows if axis in indexed and sizes[axis] != 1]
    order = [*inner, *others]
    taken = taken.reshape(*outer, *(sizes[axis] for axis in order))
    # What is of size 1 in a window, but not dropped, is put in between.
    present = [axis for axis in windows if axis in order]
    taken = lax.transpose(
        taken, [*range(len(outer)), *(len(outer) + order.index(axis) for axis in present)]
    )
    taken = taken.reshape(*outer, *(sizes[axis] for axis in windows))
    rest = iter(range(len(outer)))
    window = {place: len(outer) + n for n, place in enumerate(places.window)}
    return lax.transpose(
        taken, [window[n] if n in window else next(rest) for n in range(len(result))]
    )


def _result_shape(
    places: SlicePlaces, outer: Sequence[Dimension], inner: Sequence[Dimension]
) -> tuple[Dimension, ...]:
    sizes, rest = dict(zip(places.window, inner, strict=True)), iter(outer)
    return tuple(sizes[n] if n in sizes else next(rest) for n in range(len(outer) + len(inner)))


# Updates that are subtracted are negated.
_SCATTERS: Mapping[str, Callable[..., Any]] = {**SCATTERS, "subtract": lax.scatter_add}
# A function of the old elements and the updates, for as many arrays as there are.
_Combine = Callable[..., Sequence[Any]]


def _scatter(op: LoweredOperation) -> Any:
    """Return arrays whose elements are combined with updates, by one of some kernels or a loop."""
    block, count = op.regions[0].block, len(op.operands) // 2
    name = combiner_of(block) if count == 1 else ""
    values = [jnp.asarray(op.array(n)) for n in range(count)]
    updates = [jnp.asarray(op.array(n)) for n in range(count + 1, 2 * count + 1)]
    places = SlicePlaces.of_scatter(op)
    shape, size = values[0].shape, updates[0].size
    if 0 in shape or size == 0:
        return values
    parts, outer = _columns(op, places, count)
    windows = dict(zip(places.window_axes(len(shape)), places.window, strict=True))
    sizes = [updates[0].shape[windows[n]] if n in windows else 1 for n in range(len(shape))]
    indexed = [n for n in range(len(shape)) if n in parts or sizes[n] != shape[n]]
    others = [n for n in range(len(shape)) if n not in indexed]
    count_rows = math.prod(shape[n] for n in indexed)
    inside = jnp.ones(outer, np.bool_)
    for axis, part in parts.items():
        inside = inside & (part >= 0) & (part <= shape[axis] - sizes[axis])
    starts = {axis: jnp.where(inside, part, 0) for axis, part in parts.items()}
    flat = _flat_indices(shape, indexed, sizes, starts, outer)
    holds = lax.expand_dims(inside, range(len(outer), flat.ndim))
    flat = jnp.where(holds, flat, jnp.asarray(count_rows, np.int32)).reshape(-1)
    width = math.prod(shape[n] for n in others)
    order = [
        *places.other_axes(updates[0].ndim),
        *(windows[n] for n in (*indexed, *others) if n in windows),
    ]
    lines = [lax.transpose(update, order).reshape(-1, width) for update in updates]
    turned = (*indexed, *others)
    rows = [lax.transpose(value, turned).reshape(count_rows, width) for value in values]
    made = _combined(op, rows, flat, lines, name)
    back = [turned.index(axis) for axis in range(len(shape))]
    return [lax.transpose(one.reshape([shape[n] for n in turned]), back) for one in made]


def _combined(
    op: LoweredOperation,
    rows: list[Any],
    flat: Any,
    lines: list[Any],
    name: str,
) -> list[Any]:
    """Return matrices whose rows at indices are combined with lines."""
    logical = op.logical_dtype()
    if logical.kind == "b":
        name = SCATTERS_OF_BOOLS.get(name, "") if name in _SCATTERS else ""
        if name:
            made = put_rows(
                rows[0].astype(np.int32), flat, lines[0].astype(np.int32), _SCATTERS[name]
            )
            return [made != 0]
    combine: _Combine = op.regions[0].of_elements
    if name in _SCATTERS and name in ("maximum", "minimum"):
        return [_extreme(logical, rows[0], flat, lines[0], _SCATTERS[name])]
    if name in _SCATTERS:
        update = -lines[0] if name == "subtract" else lines[0]
        return [put_rows(rows[0], flat, update, _SCATTERS[name])]
    if op.flag("unique_indices"):
        return _combine_once(combine, rows, flat, lines)
    return _combine_in_order(combine, rows, flat, lines)


def _extreme(
    logical: np.dtype[Any], rows: Any, flat: Any, lines: Any, scatter: Callable[..., Any]
) -> Any:
    if is_unsigned(logical):
        return unsigned_order(put_rows(unsigned_order(rows), flat, unsigned_order(lines), scatter))
    made = put_rows(rows, flat, lines, scatter)
    if integer_bits(logical):
        return made
    # The kernel loses a NaN of an update.
    nan = put_rows(
        jnp.zeros(rows.shape, np.int32), flat, (lines != lines).astype(np.int32), lax.scatter_max
    )
    return jnp.where(nan != 0, np.float32(np.nan), made)


def _combine_once(combine: _Combine, rows: list[Any], flat: Any, lines: list[Any]) -> list[Any]:
    """Combine lines with rows of which no two are the same."""
    last = rows[0].shape[0] - 1
    old = [take_rows(_numbers(row), jnp.minimum(flat, last)).astype(row.dtype) for row in rows]
    made = combine(*old, *lines)
    return [
        put_rows(_numbers(row), flat, _numbers(line)).astype(row.dtype)
        for row, line in zip(rows, made, strict=True)
    ]


def _numbers(value: Any) -> Any:
    return value.astype(np.int32) if value.dtype == np.bool_ else value


def _combine_in_order(combine: _Combine, rows: list[Any], flat: Any, lines: list[Any]) -> list[Any]:
    """Combine one line after another, since several may be for one row."""
    count, size = flat.shape[0], rows[0].shape[0]

    def step(carried: Any) -> Any:
        number, *now = carried
        at = lax.squeeze(lax.dynamic_slice(flat, (number,), (1,)), [0])
        place = jnp.minimum(at, size - 1)
        old = [lax.dynamic_slice(row, (place, 0), (1, row.shape[1])) for row in now]
        given = [lax.dynamic_slice(line, (number, 0), (1, line.shape[1])) for line in lines]
        new = combine(*old, *given)
        new = [jnp.where(at < size, *pair) for pair in zip(new, old, strict=True)]
        put = [
            lax.dynamic_update_slice(row, one, (place, 0))
            for row, one in zip(now, new, strict=True)
        ]
        return (number + 1, *put)

    final = lax.while_loop(lambda carried: carried[0] < count, step, (np.int32(0), *rows))
    return list(final[1:])


def _clamped(
    op: LoweredOperation, first: int, shape: Sequence[Dimension], sizes: Sequence[Dimension]
) -> list[Any]:
    """Return the starts of a slice, in int32, as XLA moves them into the array."""
    starts = []
    for n, (dim, size) in enumerate(zip(shape, sizes, strict=True)):
        start = op.array(first + n)
        if is_unsigned(op.operand_dtype(first + n)):
            start = jnp.where(start < 0, np.iinfo(start.dtype).max, start)
        starts.append(jnp.clip(start, 0, dim - size).astype(np.int32))
    return starts


def _dynamic_slice(op: LoweredOperation) -> Any:
    value, sizes = op.array(0), op.integers("slice_sizes")
    starts = _clamped(op, 1, np.shape(value), sizes)
    if 0 in sizes:
        return jnp.zeros(sizes, value.dtype)
    return lax.dynamic_slice(value, starts, sizes, allow_negative_indices=False)


def _dynamic_update_slice(op: LoweredOperation) -> Any:
    value, update = op.array(0), op.array(1)
    if 0 in np.shape(update):
        return value
    starts = _clamped(op, 2, np.shape(value), np.shape(update))
    return lax.dynamic_update_slice(value, update, starts, allow_negative_indices=False)


RULES = {
    name: LiftingRule(lift, OF_JAX[name].attributes if name in OF_JAX else attributes)
    for name, lift, attributes in (
        ("stablehlo.dynamic_gather", _dynamic_gather, ()),
        ("stablehlo.dynamic_slice", _dynamic_slice, ("slice_sizes",)),
        ("stablehlo.dynamic_update_slice", _dynamic_update_slice, ()),
        ("stablehlo.gather", _gather, ()),
        ("stablehlo.scatter", _scatter, ()),
    )
}
