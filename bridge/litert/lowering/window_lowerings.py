"""Windows that go over an array: pooling of images, and operations on slices.

LiteRT's pooling of images loses NaN, which is pooled apart, and its other reductions of windows
know few dtypes. What other windows have is combined along one dimension after another, with the
slices that begin where the elements of all windows do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.reduction_primitives import is_identity, reducer_of
from bridge.lifting.window_primitives import CUSTOM_CALLS as OF_JAX_CALLS
from bridge.lifting.window_primitives import RULES as OF_JAX
from bridge.lifting.window_primitives import WindowPlaces, computed_windows_of, windows_of
from bridge.litert.lowering.arithmetic_lowerings import is_unsigned, unsigned_order
from bridge.litert.lowering.elementary_lowerings import negative
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits, to_storage
from xla_call_module.stablehlo.combiners import combiner_of, identity_of

# How many elements of a window are combined one after another.
MAX_WINDOW = 1024
# The same of a dimension of a window; of a larger one, halves are combined.
_MAX_STEPS = 8


def greater(left: Any, right: Any) -> Any:
    """Return the greater one of floats, and NaN if one is."""
    return jnp.where((left >= right) | (left != left), left, right)


def less(left: Any, right: Any) -> Any:
    """Return the lesser one of floats, and NaN if one is."""
    return jnp.where((left <= right) | (left != left), left, right)


_OF_FLOATS: Mapping[str, Callable[..., Any]] = {
    "add": jnp.add, "maximum": greater, "minimum": less, "multiply": jnp.multiply,
}  # fmt: skip
_OF_INTEGERS: Mapping[str, Callable[..., Any]] = {
    "add": jnp.add, "maximum": jnp.maximum, "minimum": jnp.minimum, "multiply": jnp.multiply,
}  # fmt: skip
_OF_BOOLS: Mapping[str, Callable[..., Any]] = {
    "and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.not_equal,
}  # fmt: skip


def _combiner(name: str, logical: np.dtype[Any]) -> Callable[..., Any] | None:
    """Return what combines arrays of a dtype by a monoid; None if it is to be the region."""
    if logical.kind == "b":
        return _OF_BOOLS.get(name)
    return (_OF_INTEGERS if integer_bits(logical) else _OF_FLOATS).get(name)


def _reduce_window(op: LoweredOperation) -> Any:
    return _reduce_windows(op, op.arrays, windows_of(op))


def _dynamic_reduce_window(op: LoweredOperation) -> Any:
    windows, count = computed_windows_of(op)
    return _reduce_windows(op, op.arrays[:count], windows)


def _reduce_windows(op: LoweredOperation, arrays: Sequence[Any], windows: WindowPlaces) -> Any:
    count = len(arrays) // 2
    values, starts = arrays[:count], arrays[count:]
    name = reducer_of(op.regions[0].block) if count == 1 else ""
    values, starts = ([*map(jnp.asarray, part)] for part in (values, starts))
    logical = op.logical_dtype()
    if _combiner(name, logical) is not None:
        return [_reduce_simply(op, name, values[0], op.operands[1], windows)]
    running = windows.running(values[0].shape)
    if running is not None:
        made = _accumulate(values, running, op.regions[0].of_elements)
        begun = [
            jnp.broadcast_to(start, one.shape) for start, one in zip(starts, made, strict=True)
        ]
        return op.regions[0].of_elements(*begun, *made)
    return _fold(op, values, starts, windows)


def _reduce_simply(
    op: LoweredOperation, name: str, value: Any, start: Any, windows: WindowPlaces
) -> Any:
    """Return what a monoid makes of each window."""
    logical = op.logical_dtype()
    combine = _combiner(name, logical)
    assert combine is not None
    identity = identity_of(name, logical)
    begins = not (isinstance(start, np.ndarray) and is_identity(start, identity))
    nothing, start = (jnp.asarray(to_storage(one)) for one in (identity, start))
    is_turned = is_unsigned(logical) and name in ("maximum", "minimum")
    if is_turned:
        value, nothing, start = map(unsigned_order, (value, nothing, start))
    running = windows.running(value.shape)
    if running is not None and name == "add" and isinstance(value.shape[running[0]], int):
        made = lax.cumsum(value, running[0], reverse=running[1])
    elif running is not None:
        (made,) = _accumulate([value], running, lambda *pair: [combine(*pair)])
    elif _is_pooling(name, logical, value.shape, windows):
        made = _pooled(name, value, windows, exact=op.exact)
    else:
        made = _fold_axes(value, nothing, windows, combine)
    if begins:
        made = combine(made, jnp.broadcast_to(start, made.shape))
    return unsigned_order(made) if is_turned else made


def _is_pooling(
    name: str, logical: np.dtype[Any], shape: Sequence[Dimension], windows: WindowPlaces
) -> bool:
    """Return whether it is the extreme of windows of rows and columns of images of floats."""
    return (
        name in ("maximum", "minimum")
        and not integer_bits(logical)
        and len(shape) == 4
        # Of symbolic sizes NaN would become an array whose size XNNPACK does not know beforehand.
        and all(isinstance(size, int) and size > 0 for size in shape)
        and all(
            (windows.sizes[axis], windows.strides[axis], windows.padding[axis]) == (1, 1, (0, 0))
            for axis in (0, 3)
        )
        and {*windows.dilation, *windows.base_dilation} == {1}
        and math.prod(windows.sizes) > 1
        and all(
            min(pads) >= 0 and size + sum(pads) >= window
            for size, pads, window in zip(shape, windows.padding, windows.sizes, strict=True)
        )
        # XNNPACK leaves wider strides to kernels that have the greatest float for infinity.
        and all(stride <= size for stride, size in zip(windows.strides, windows.sizes, strict=True))
    )


def _pooled(name: str, value: Any, windows: WindowPlaces, *, exact: bool) -> Any:
    """Return the extreme of windows over images by the kernel; what is NaN is pooled apart."""
    pads = windows.padding
    lowest = np.float32(-np.inf)
    is_greatest = name == "maximum"
    if any(map(any, pads)) and [*pads] != [
        *lax.padtype_to_pads(value.shape, windows.sizes, windows.strides, "SAME")
    ]:
        fill = lowest if is_greatest else -lowest
        value, pads = lax.pad(value, fill, [(*pair, 0) for pair in pads]), ((0, 0),) * 4

    def pooled(array: Any) -> Any:
        return lax.reduce_window(array, lowest, lax.max, windows.sizes, windows.strides, pads)

    made = pooled(value) if is_greatest else negative(pooled(negative(value)))
    if not exact:
        return made
    is_nan = pooled((value != value).astype(np.float32)) > 0
    return jnp.where(is_nan, np.float32(np.nan), made)


def _accumulate(
    values: Sequence[Any], running: tuple[int, bool], combine: Callable[..., list[Any]]
) -> list[Any]:
    """Return what is made of each element and all before it, by steps of 1, 2, 4, …."""
    axis, is_reversed = running
    size = values[0].shape[axis]
    if not isinstance(size, int):
        return _accumulate_symbolic(values, running, combine)
    made = [*values]
    step = 1
    while step < size:
        near = [_part(one, axis, 0, size - step) for one in made]
        far = [_part(one, axis, step, size) for one in made]
        joined = combine(*far, *near) if is_reversed else combine(*near, *far)
        ends = (size - step, size) if is_reversed else (0, step)
        rest = [_part(one, axis, *ends) for one in made]
        pairs = zip(joined, rest, strict=True) if is_reversed else zip(rest, joined, strict=True)
        made = [lax.concatenate(pair, axis) for pair in pairs]
        step *= 2
    return made


def _accumulate_symbolic(
    values: Sequence[Any], running: tuple[int, bool], combine: Callable[..., list[Any]]
) -> list[Any]:
    """Return the same along a dimension whose size only the model that runs has, by a loop."""
    axis, is_reversed = running
    size = jnp.asarray(values[0].shape[axis], np.int32)
    places = lax.broadcasted_iota(np.int32, (values[0].shape[axis],), 0)
    others = [n for n in range(values[0].ndim) if n != axis]

    def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, *made = state
        sources = places + step if is_reversed else places - step
        is_inside = sources < size if is_reversed else sources >= 0
        clipped = jnp.minimum(jnp.maximum(sources, 0), size - 1)
        near = [jnp.take(one, clipped, axis=axis, mode="clip") for one in made]
        joined = combine(*near, *made)
        mask = lax.expand_dims(is_inside, others)
        kept = [jnp.where(mask, *pair) for pair in zip(joined, made, strict=True)]
        return step * 2, *kept

    _, *made = lax.while_loop(lambda state: state[0] < size, advance, (jnp.int32(1), *values))
    return made


def _part(value: Any, axis: int, start: Dimension, end: Dimension, stride: int = 1) -> Any:
    return lax.slice_in_dim(value, start, end, stride, axis)


def _fold_axes(value: Any, nothing: Any, windows: WindowPlaces, combine: Callable[..., Any]) -> Any:
    """Return what a monoid makes of each window, along one dimension after another."""
    value = _padded(value, nothing, windows)
    for axis, (size, stride, step) in enumerate(
        zip(windows.sizes, windows.strides, windows.dilation, strict=True)
    ):
        if (size, stride) == (1, 1):
            continue
        places = (value.shape[axis] - (size - 1) * step - 1) // stride + 1
        if places <= 0:
            shape = [0 if n == axis else dim for n, dim in enumerate(value.shape)]
            value = jnp.zeros(shape, value.dtype)
            continue
        value = _fold_axis(value, axis, (size, stride, step), places, combine)
    return value


def _fold_axis(
    value: Any,
    axis: int,
    window: tuple[int, int, int],
    places: Dimension,
    combine: Callable[..., Any],
) -> Any:
    """Return what is made of the elements of windows along one dimension."""
    size, stride, step = window

    def at(array: Any, offset: int) -> Any:
        first = offset * step
        return _part(array, axis, first, first + (places - 1) * stride + 1, stride)

    if size <= _MAX_STEPS:
        folded = at(value, 0)
        for offset in range(1, size):
            folded = combine(folded, at(value, offset))
        return folded
    folded, offset, span = None, 0, 1
    while True:
        if size & span:
            folded = at(value, offset) if folded is None else combine(folded, at(value, offset))
            offset += span
        if 2 * span > size:
            return folded
        end = value.shape[axis]
        value = combine(
            _part(value, axis, 0, end - span * step), _part(value, axis, span * step, end)
        )
        span *= 2


def _padded(value: Any, nothing: Any, windows: WindowPlaces) -> Any:
    triples = [
        (*pair, step - 1) for pair, step in zip(windows.padding, windows.base_dilation, strict=True)
    ]
    return lax.pad(value, nothing, triples) if any(map(any, triples)) else value


def _slices(
    shape: Sequence[int], windows: WindowPlaces
) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """Return how many windows a padded array has, and the slices of each element of a window."""
    reach = [(n - 1) * d + 1 for n, d in zip(windows.sizes, windows.dilation, strict=True)]
    places = [
        max(0, (size - far) // stride + 1)
        for size, far, stride in zip(shape, reach, windows.strides, strict=True)
    ]
    slices = []
    for offsets in itertools.product(*map(range, windows.sizes)):
        first = [n * d for n, d in zip(offsets, windows.dilation, strict=True)]
        last = [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(first, places, windows.strides, strict=True)
        ]
        slices.append((first, last))
    return places, slices


def _fold(
    op: LoweredOperation, values: Sequence[Any], starts: Sequence[Any], windows: WindowPlaces
) -> list[Any]:
    """Return what a region makes of each window, element by element."""
    if math.prod(windows.sizes) > MAX_WINDOW:
        op.refuse(f"it combines {math.prod(windows.sizes)} elements in a way of its own")
    padded = [_padded(value, jnp.zeros((), value.dtype), windows) for value in values]
    inside = _padded(jnp.ones(values[0].shape, np.int32), np.int32(0), windows)
    places, slices = _slices(inside.shape, windows)
    folded = [jnp.broadcast_to(start, places) for start in starts]
    if 0 in places:
        return folded
    for first, last in slices:
        parts = [lax.slice(value, first, last, windows.strides) for value in padded]
        holds = lax.slice(inside, first, last, windows.strides) != 0
        combined = op.regions[0].of_elements(*folded, *parts)
        folded = [jnp.where(holds, *pair) for pair in zip(combined, folded, strict=True)]
    return folded


def _select_and_scatter(op: LoweredOperation) -> Any:
    """Combine each number with that at the place which its window selects."""
    value, source, start = map(jnp.asarray, op.arrays)
    select, scatter = op.regions
    rank = value.ndim
    ones = (1,) * rank
    windows = WindowPlaces(
        sizes=op.integers("window_dimensions", ones),
        strides=op.integers("window_strides", ones),
        padding=tuple(zip(*op.padding(rank), strict=True)),
        base_dilation=ones,
        dilation=ones,
    )
    if math.prod(windows.sizes) > MAX_WINDOW:
        op.refuse(f"it selects of {math.prod(windows.sizes)} elements")
    padded = _padded(value, jnp.zeros((), value.dtype), windows)
    inside = _padded(jnp.ones(value.shape, np.int32), np.int32(0), windows)
    places, slices = _slices(inside.shape, windows)
    if 0 in places:
        return jnp.broadcast_to(start, value.shape)
    best, chosen = jnp.zeros(places, value.dtype), jnp.full(places, -1, np.int32)
    for number, (first, last) in enumerate(slices):
        part = lax.slice(padded, first, last, windows.strides)
        holds = lax.slice(inside, first, last, windows.strides) != 0
        (stays,) = select.of_elements(best, part)
        takes = holds & ((chosen < 0) | ~stays)
        best, chosen = jnp.where(takes, part, best), jnp.where(takes, np.int32(number), chosen)
    made = jnp.broadcast_to(start, value.shape)
    is_sum = combiner_of(scatter.block) == "add" and op.logical_dtype().kind != "b"
    for number, (first, _) in enumerate(slices):
        here = chosen == number
        placed = _placed(
            jnp.where(here, source, jnp.zeros_like(source)), first, padded.shape, windows
        )
        if is_sum:
            made = made + placed
            continue
        (combined,) = scatter.of_elements(made, placed)
        hit = _placed(here.astype(np.int32), first, padded.shape, windows) != 0
        made = jnp.where(hit, combined, made)
    return made


def _placed(part: Any, first: Sequence[int], shape: Sequence[int], windows: WindowPlaces) -> Any:
    """Return the array, without padding, that has elements at the places of a slice, else 0."""
    triples = []
    for axis, (start, pads) in enumerate(zip(first, windows.padding, strict=True)):
        stride = windows.strides[axis]
        end = start + (part.shape[axis] - 1) * stride + 1
        triples.append((start - pads[0], shape[axis] - end - pads[1], stride - 1))
    return lax.pad(part, jnp.zeros((), part.dtype), triples)


RULES = {
    name: LiftingRule(lower, OF_JAX[name].attributes)
    for name, lower in (
        ("stablehlo.reduce_window", _reduce_window),
        ("stablehlo.select_and_scatter", _select_and_scatter),
    )
}
CUSTOM_CALLS = {
    name: LiftingRule(_dynamic_reduce_window, rule.attributes)
    for name, rule in OF_JAX_CALLS.items()
}
