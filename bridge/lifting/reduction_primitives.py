"""Reductions, windows and sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.combiners import (
    block_dtypes,
    combiner_of,
    extreme_and_place_of,
    identity_of,
    sort_order_of,
)

__all__ = ["RULES", "reduce_window"]

# The functions by which `jax.lax` knows reductions that have primitives, with derivatives.
_REDUCERS: Mapping[str, Callable[..., Any]] = {
    "add": lax.add,
    "and": lax.bitwise_and,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
}
_REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": lax.reduce_sum,
    "and": lax.reduce_and,
    "maximum": lax.reduce_max,
    "minimum": lax.reduce_min,
    "multiply": lax.reduce_prod,
    "or": lax.reduce_or,
    "xor": lax.reduce_xor,
}


def _reduce(op: LiftedOperation) -> Any:
    count = len(op.operands) // 2
    values, starts = op.arrays[:count], op.arrays[count:]
    axes, (region,) = op.integers("dimensions"), op.regions
    name = combiner_of(region.block) if count == 1 else ""
    if name in _REDUCERS and jnp.result_type(values[0]) == block_dtypes(region.block)[0]:
        return _reduce_simply(name, values[0], starts[0], axes)
    if count == 2 and len(axes) == 1 and _counts(op, axes[0]):
        order = extreme_and_place_of(region.block, region.trial)
        if order and np.shape(values[0])[axes[0]] != 0 and _begins(order, starts):
            return _extreme_and_place(op, order, values, axes[0])

    def combine(left: Any, right: Any) -> Any:
        return tuple(region(*left, *right))

    return list(lax.reduce(tuple(values), tuple(starts), combine, axes))


def _reduce_simply(name: str, value: Any, start: Any, axes: Sequence[int]) -> Any:
    reducer, identity = _REDUCERS[name], identity_of(name, jnp.result_type(value))
    reduced = _REDUCTIONS[name](value, tuple(axes))
    if isinstance(start, np.ndarray) and _is_identity(start, identity):
        return reduced
    return reducer(reduced, jnp.broadcast_to(start, np.shape(reduced)))


def _is_identity(start: np.ndarray[Any, Any], identity: np.ndarray[Any, Any]) -> bool:
    """Return whether a number is the one that changes nothing; the sign of 0 does not matter."""
    return bool(start.astype(identity.dtype) == identity)


def _counts(op: LiftedOperation, axis: int) -> bool:
    """Return whether the second operand is 0, 1, 2, … along a dimension, as an iota makes it."""
    maker = op.raw.operands[1].owner
    if getattr(maker, "name", "") == "stablehlo.broadcast_in_dim":
        dims = tuple(map(int, maker.attributes["broadcast_dimensions"]))
        inner = maker.operands[0].owner
        is_iota = getattr(inner, "name", "") == "stablehlo.iota"
        return is_iota and dims[int(inner.attributes["iota_dimension"].value)] == axis
    if getattr(maker, "name", "") not in ("stablehlo.iota", "stablehlo.dynamic_iota"):
        return False
    return int(maker.attributes["iota_dimension"].value) == axis


def _begins(order: str, starts: Sequence[Any]) -> bool:
    """Return whether an extreme begins with what no number is beyond, at the place 0."""
    if not all(isinstance(start, np.ndarray) for start in starts):
        return False
    identity = identity_of(f"{order}imum", starts[0].dtype)
    return _is_identity(starts[0], identity) and not starts[1].any()


def _extreme_and_place(
    op: LiftedOperation, order: str, values: Sequence[Any], axis: int
) -> list[Any]:
    """Return the first greatest or least number, or the first NaN, and where it is."""
    value, counting = values
    find = lax.argmax if order == "max" else lax.argmin
    place = find(value, axis, jnp.result_type(counting))
    if not list(op.raw.results[0].uses):  # as in what JAX lowers
        return [None, place]
    taken = jnp.take_along_axis(value, jnp.expand_dims(place, axis), axis)
    return [lax.squeeze(taken, [axis]), place]


def reduce_window(
    op: LiftedOperation,
    values: Sequence[Any],
    starts: Sequence[Any],
    window: tuple[Sequence[Dimension], ...],
    padding: Sequence[tuple[Dimension, Dimension]],
) -> list[Any]:
    """Return what a window combines at each of its places.

    Args:
        op: the operation, whose region combines.
        values: the arrays.
        starts: what each window begins with.
        window: its sizes, its strides, and the dilations of the array and of itself.
        padding: what is put around the array, before and behind each dimension.
    """
    (region,) = op.regions
    sizes, strides, inner, outer = map(tuple, window)
    name = combiner_of(region.block) if len(values) == 1 else ""
    options: Any = (sizes, strides, tuple(padding), inner, outer)
    if name in _REDUCERS and jnp.result_type(values[0]) == block_dtypes(region.block)[0]:
        reducer, identity = _REDUCERS[name], identity_of(name, jnp.result_type(values[0]))
        if isinstance(starts[0], np.ndarray) and _is_identity(starts[0], identity):
            return [lax.reduce_window(values[0], identity, reducer, *options)]

    def combine(left: Any, right: Any) -> Any:
        return tuple(region(*left, *right))

    return list(lax.reduce_window(tuple(values), tuple(starts), combine, *options))


def _reduce_window(op: LiftedOperation) -> Any:
    count = len(op.operands) // 2
    rank = len(op.types[0].shape)
    ones = (1,) * rank
    window = (
        op.integers("window_dimensions"),
        op.integers("window_strides", ones),
        op.integers("base_dilations", ones),
        op.integers("window_dilations", ones),
    )
    padding = list(zip(*op.padding(rank), strict=True))
    return reduce_window(op, op.arrays[:count], op.arrays[count:], window, padding)


_SELECTED = {"GE": lax.max, "GT": lax.max, "LE": lax.min, "LT": lax.min}


def _select_and_scatter(op: LiftedOperation) -> Any:
    """Add each number to the place of its window's extreme, as the gradient of a pooling does."""
    value, source, start = op.arrays
    select, scatter = op.regions
    operations = [view.operation for view in select.block]
    direction = str(operations[0].attributes["comparison_direction"]) if operations else ""
    known = next((f for name, f in _SELECTED.items() if f"direction {name}>" in direction), None)
    if known is None or combiner_of(scatter.block) != "add" or len(operations) != 2:
        op.refuse("it selects or combines elements in another way than by an extreme and a sum")
    if not (isinstance(start, np.ndarray) and not start.any()):
        op.refuse("it begins with numbers other than 0")
    rank = len(op.types[0].shape)
    ones, dtype = (1,) * rank, jnp.result_type(value)
    sizes, strides = op.integers("window_dimensions", ones), op.integers("window_strides", ones)
    padding = list(zip(*op.padding(rank), strict=True))
    identity = identity_of("maximum" if known is lax.max else "minimum", dtype)

    def pool(array: Any) -> Any:
        return lax.reduce_window(array, identity, known, sizes, strides, padding)

    (scattered,) = jax.vjp(pool, value)[1](source)
    return scattered


def _sort(op: LiftedOperation) -> Any:
    axis = op.integer("dimension", -1)
    order = sort_order_of(op.regions[0].block, op.regions[0].trial)
    if order is None:
        op.refuse("its comparator is another order than that of numbers")
    keys, downwards = order
    if downwards:
        op.refuse("its comparator is another order than that of numbers")
    # A sort that need not be stable may be, and JAX lowers it so by default.
    return list(lax.sort(op.arrays, dimension=axis, is_stable=op.flag("is_stable"), num_keys=keys))


_WINDOW = (
    "base_dilations",
    "padding",
    "window_dilations",
    "window_dimensions",
    "window_strides",
)
RULES = {
    "stablehlo.reduce": LiftingRule(_reduce, ("dimensions",)),
    "stablehlo.reduce_window": LiftingRule(_reduce_window, _WINDOW),
    "stablehlo.select_and_scatter": LiftingRule(_select_and_scatter, _WINDOW),
    "stablehlo.sort": LiftingRule(_sort, ("dimension", "is_stable")),
}
