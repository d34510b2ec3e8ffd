"""Windows that go over an array, and what scatters to their places."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension, as_array
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion, LiftingRule
from bridge.lifting.reduction_primitives import (
    REDUCERS,
    begin_with,
    is_idempotent,
    is_identity,
    reducer_of,
)
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.combiners import combiner_of, identity_of
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES, WINDOW_ATTRIBUTES

# How many elements of a window are combined one after another where it is differentiated.
MAX_WINDOW = 1024

_CUMULATIVE: Mapping[str, Callable[..., Any]] = {
    "add": lax.cumsum,
    "maximum": lax.cummax,
    "minimum": lax.cummin,
    "multiply": lax.cumprod,
}


@dataclass(frozen=True, slots=True)
class WindowPlaces:
    """The places of windows in an array: for each dimension, a number or a pair of them."""

    sizes: tuple[Dimension, ...]
    strides: tuple[Dimension, ...]
    padding: tuple[tuple[Dimension, Dimension], ...]
    base_dilation: tuple[Dimension, ...]
    dilation: tuple[Dimension, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that `jax.lax.reduce_window` takes after the function, in its order."""
        return self.sizes, self.strides, self.padding, self.base_dilation, self.dilation

    def running(self, shape: Sequence[Dimension]) -> tuple[int, bool] | None:
        """Return the dimension along which all elements before one are combined with it.

        With whether it is from the end; None if the windows are others.
        """
        ones = (1,) * len(shape)
        if (self.strides, self.base_dilation, self.dilation) != (ones, ones, ones):
            return None
        wide = [axis for axis, size in enumerate(self.sizes) if size != 1]
        if len(wide) != 1 or self.sizes[wide[0]] != shape[wide[0]]:
            return None
        (axis,) = wide
        others = [pad for n, pad in enumerate(self.padding) if n != axis]
        if any(tuple(pad) != (0, 0) for pad in others):
            return None
        reach = shape[axis] - 1
        directions = {(reach, 0): False, (0, reach): True}
        backwards = directions.get(tuple(self.padding[axis]))
        return None if backwards is None else (axis, backwards)


def _reduce_window(op: LiftedOperation) -> Any:
    return _reduce_windows(op, op.arrays, windows_of(op))


def _dynamic_reduce_window(op: LiftedOperation) -> Any:
    windows, count = computed_windows_of(op)
    return _reduce_windows(op, [as_array(value) for value in op.operands[:count]], windows)


def windows_of(op: LiftedOperation) -> WindowPlaces:
    """Return the windows of a `reduce_window`."""
    rank = len(op.types[0].shape)
    ones = (1,) * rank
    return WindowPlaces(
        sizes=op.integers("window_dimensions"),
        strides=op.integers("window_strides", ones),
        padding=tuple(zip(*op.padding(rank), strict=True)),
        base_dilation=op.integers("base_dilations", ones),
        dilation=op.integers("window_dilations", ones),
    )


# How many operands of a `dynamic_reduce_window` say what its windows are.
_COMPUTED = 5


def computed_windows_of(op: LiftedOperation) -> tuple[WindowPlaces, int]:
    """Return the windows of a `dynamic_reduce_window`, and the number of its other operands."""
    count = len(op.operands) - _COMPUTED
    sizes, strides, base, dilation, padding = map(op.dimensions, range(count, count + _COMPUTED))
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return WindowPlaces(sizes, strides, pairs, base, dilation), count


def _reduce_windows(op: LiftedOperation, arrays: Sequence[Any], windows: WindowPlaces) -> list[Any]:
    count = len(arrays) // 2
    (region,) = op.regions
    dtypes = op.region_dtypes[:count]
    values, starts = (
        [_converted(array, dtype) for array, dtype in zip(part, dtypes, strict=True)]
        for part in (arrays[:count], arrays[count:])
    )
    name = reducer_of(region.block)
    if name:
        return [_reduce_simply(name, values[0], starts[0], windows)]
    if all(isinstance(start, np.ndarray) for start in starts):
        return _differentiable(region, values, starts, windows)
    return _fold(region, values, starts, windows, op)


def _converted(array: Any, dtype: np.dtype[Any]) -> Any:
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def _reduce_simply(name: str, value: Any, start: Any, windows: WindowPlaces) -> Any:
    """Return what a monoid of JAX makes of each window."""
    reducer, identity = REDUCERS[name], identity_of(name, jnp.result_type(value))
    if isinstance(start, np.ndarray) and is_identity(start, identity):
        return _reduce_without_start(name, value, windows)

    def known(value: Any, start: Any) -> Any:
        reduced = _reduce_without_start(name, value, windows)
        return reducer(reduced, jnp.broadcast_to(start, np.shape(reduced)))

    def compute(value: Any, start: Any) -> Any:
        return lax.reduce_window(value, start, reducer, *windows.arguments)

    return known(value, start) if is_idempotent(name) else begin_with(compute, known, value, start)


def _reduce_without_start(name: str, value: Any, windows: WindowPlaces) -> Any:
    running = windows.running(np.shape(value))
    if running is not None and name in _CUMULATIVE:
        return _CUMULATIVE[name](value, running[0], reverse=running[1])
    identity = identity_of(name, jnp.result_type(value))
    return lax.reduce_window(value, identity, REDUCERS[name], *windows.arguments)


def _differentiable(
    region: LiftedRegion, values: Sequence[Any], starts: Sequence[Any], windows: WindowPlaces
) -> list[Any]:
    """Return what any region makes of each window, with a derivative in both modes."""

    def reduced(*arrays: Any) -> tuple[Any, ...]:
        def combine(left: Any, right: Any) -> Any:
            return tuple(region(*left, *right))

        return tuple(lax.reduce_window(arrays, tuple(starts), combine, *windows.arguments))

    function = jax.custom_jvp(reduced)
    dtypes = [start.dtype for start in starts]
    later = region.traced(dtypes * 2)
    is_wide = jax.config.read("jax_enable_x64")

    @function.defjvp
    def push(primals: Any, tangents: Any) -> Any:
        with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
            return jax.jvp(
                lambda *arrays: tuple(_fold(later, arrays, starts, windows, None)),
                primals,
                tangents,
            )

    return list(function(*values))


def _fold(
    region: LiftedRegion,
    values: Sequence[Any],
    starts: Sequence[Any],
    windows: WindowPlaces,
    op: LiftedOperation | None,
) -> list[Any]:
    """Return what a region makes of each window, as operations on whole arrays."""
    shape = np.shape(values[0])
    running = windows.running(shape)
    if running is not None and op is None:
        axis, backwards = running

        def combine(left: Any, right: Any) -> Any:
            pair = (right, left) if backwards else (left, right)
            return tuple(region.of_elements(*pair[0], *pair[1]))

        return list(lax.associative_scan(combine, tuple(map(jnp.asarray, values)), backwards, axis))
    numbers = (*windows.sizes, *shape)
    if not all(isinstance(n, int) for n in numbers) or math.prod(windows.sizes) > MAX_WINDOW:
        if op is None:
            raise TypeError(f"a window of {windows.sizes} elements is too large to differentiate")
        op.refuse(f"its windows of {windows.sizes} elements begin with what is computed")
    return _fold_in_order(region, values, starts, windows)


def _fold_in_order(
    region: LiftedRegion, values: Sequence[Any], starts: Sequence[Any], windows: WindowPlaces
) -> list[Any]:
    """Combine the elements of all windows, one place after another; XLA leaves out the padding."""
    triples = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(windows.padding, windows.base_dilation, strict=True)
    ]
    padded = [lax.pad(value, np.zeros((), value.dtype), triples) for value in values]
    inside = lax.pad(np.ones(np.shape(values[0]), bool), np.zeros((), bool), triples)
    reach = [(n - 1) * d + 1 for n, d in zip(windows.sizes, windows.dilation, strict=True)]
    places = [
        max(0, (size - far) // stride + 1)
        for size, far, stride in zip(np.shape(inside), reach, windows.strides, strict=True)
    ]
    folded = [jnp.broadcast_to(start, places) for start in starts]
    if 0 in places:
        return folded
    for offsets in itertools.product(*map(range, windows.sizes)):
        first = [n * d for n, d in zip(offsets, windows.dilation, strict=True)]
        last = [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(first, places, windows.strides, strict=True)
        ]
        parts = [lax.slice(value, first, last, windows.strides) for value in padded]
        holds = lax.slice(inside, first, last, windows.strides)
        combined = region.of_elements(*folded, *parts)
        folded = [lax.select(holds, *pair) for pair in zip(combined, folded, strict=True)]
    return folded


_SELECTED = {"GE": lax.max, "LE": lax.min}


def _select_and_scatter(op: LiftedOperation) -> Any:
    """Combine each number with that at the place which its window selects."""
    value, source, start = op.arrays
    select, scatter = op.regions
    rank = len(op.types[0].shape)
    ones = (1,) * rank
    padding = tuple(zip(*op.padding(rank), strict=True))
    windows = WindowPlaces(
        op.integers("window_dimensions", ones), op.integers("window_strides", ones), padding,
        ones, ones,
    )  # fmt: skip
    known = _SELECTED.get(_direction_of(select))
    if known is None or combiner_of(scatter.block) != "add" or not _is_float(op.dtype):
        return _scatter_to_selected(op, windows)
    identity = identity_of("maximum" if known is lax.max else "minimum", jnp.result_type(value))

    def pool(array: Any) -> Any:
        return lax.reduce_window(array, identity, known, *windows.arguments)

    (scattered,) = jax.vjp(pool, value)[1](source)
    if isinstance(start, np.ndarray) and not start.any():
        return scattered
    return lax.add(scattered, jnp.broadcast_to(start, np.shape(scattered)))


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _direction_of(select: LiftedRegion) -> str:
    """Return how a region compares its two arguments; empty if it does anything else."""
    operations = [view.operation for view in select.block]
    if len(operations) != 2 or operations[0].name != "stablehlo.compare":
        return ""
    if list(operations[0].operands) != list(select.block.arguments):
        return ""
    return comparison_direction(operations[0])


def _scatter_to_selected(op: LiftedOperation, windows: WindowPlaces) -> Any:
    """Do it by the places of what is selected, for any two regions."""
    value, source, start = op.arrays
    select, scatter = op.regions
    shape = np.shape(value)
    if not all(isinstance(dim, int) for dim in shape):
        op.refuse("it selects in an array of an unknown size in another way than by an extreme")
    places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    none = (np.zeros((), value.dtype), np.array(-1, np.int32))

    def choose(left: Any, right: Any) -> Any:
        chosen = as_array(select.apply(left[0], right[0])[0])
        kept = (left[1] >= 0) & ((right[1] < 0) | chosen)
        return tuple(jnp.where(kept, *pair) for pair in zip(left, right, strict=True))

    known = lax.stop_gradient(value)
    selected: Any = lax.reduce_window((known, places), none, choose, *windows.arguments)
    return scatter_flat(op, scatter, (start, selected[1], source), shape)


def scatter_flat(
    op: LiftedOperation, scatter: LiftedRegion, operands: tuple[Any, Any, Any], shape: Any
) -> Any:
    """Combine numbers with those at some places of an array of one number."""
    start, places, source = operands
    flat = jnp.broadcast_to(start, (math.prod(shape),))
    if combiner_of(scatter.block) == "add" and op.dtype.kind != "b":
        return flat.at[places.reshape(-1)].add(source.reshape(-1), mode="drop").reshape(shape)

    def step(array: Any, update: Any) -> Any:
        place, number = update
        (combined,) = scatter(array[place], number)
        return array.at[place].set(jnp.where(place < 0, array[place], combined)), None

    final, _ = lax.scan(step, flat, (places.reshape(-1), source.reshape(-1)))
    return final.reshape(shape)


RULES = {
    "stablehlo.reduce_window": LiftingRule(_reduce_window, WINDOW_ATTRIBUTES),
    "stablehlo.select_and_scatter": LiftingRule(_select_and_scatter, WINDOW_ATTRIBUTES),
}
CUSTOM_CALLS = {
    "stablehlo.dynamic_reduce_window": LiftingRule(_dynamic_reduce_window, CUSTOM_CALL_ATTRIBUTES),
}
