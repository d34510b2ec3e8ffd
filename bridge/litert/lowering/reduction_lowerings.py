"""Reductions: those that LiteRT has kernels for, and all others pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.reduction_primitives import counts_along, fold_pairwise, is_identity, reducer_of
from bridge.litert.lowering.arithmetic_lowerings import is_unsigned, unsigned_order
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.sorting_lowerings import taken_along
from bridge.litert.lowering.storage_dtypes import integer_bits, to_storage
from xla_call_module.stablehlo.combiners import extreme_and_place_of, identity_of

_KERNELS: Mapping[str, Callable[..., Any]] = {
    "add": lax.reduce_sum,
    "maximum": lax.reduce_max,
    "minimum": lax.reduce_min,
    "multiply": lax.reduce_prod,
}
_OF_BOOLS = {"and": lax.reduce_and, "or": lax.reduce_or}
_COMBINED: Mapping[str, Callable[..., Any]] = {
    "add": jnp.add, "maximum": jnp.maximum, "minimum": jnp.minimum, "multiply": jnp.multiply,
    "and": jnp.logical_and, "or": jnp.logical_or,
}  # fmt: skip


def _reduce(op: LoweredOperation) -> Any:
    count = len(op.operands) // 2
    axes, (region,) = op.integers("dimensions"), op.regions
    values, starts = op.arrays[:count], op.arrays[count:]
    name = reducer_of(region.block)
    logical = op.logical_dtype()
    if name and not axes:
        return values[0]
    if name in ("and", "or") and logical.kind == "b":
        return _COMBINED[name](_OF_BOOLS[name](values[0], tuple(axes)), starts[0])
    if name in _KERNELS and logical.kind != "b":
        return _by_kernel(op, name, values[0], starts[0], tuple(axes))
    if count == 2 and len(axes) == 1 and counts_along(op, axes[0]):
        order = extreme_and_place_of(region.block)
        if order and np.shape(values[0])[axes[0]] != 0:
            return _extreme_and_place(op, order, values, axes[0])
    return fold_pairwise(op, values, starts, axes)


def _by_kernel(
    op: LoweredOperation, name: str, value: Any, start: Any, axes: tuple[int, ...]
) -> Any:
    logical = op.logical_dtype()
    is_extreme = name in ("maximum", "minimum")
    if any(np.shape(value)[axis] == 0 for axis in axes):
        kept = [dim for n, dim in enumerate(np.shape(value)) if n not in axes]
        return jnp.broadcast_to(start, kept)
    begins = not (isinstance(start, np.ndarray) and is_identity(start, _identity(name, logical)))
    if is_extreme and is_unsigned(logical):
        value, start = unsigned_order(value), unsigned_order(start)
        return unsigned_order(_COMBINED[name](_KERNELS[name](value, axes), start))
    if name == "add" and not integer_bits(logical):
        made = _sum_of_parts(value, axes)
    else:
        made = _KERNELS[name](value, axes)
    made = _COMBINED[name](made, start) if begins else made
    if is_extreme and not integer_bits(logical) and op.exact:
        return with_nan(made, value, axes, start)
    return made


def _identity(name: str, logical: np.dtype[Any]) -> Any:
    return to_storage(identity_of(name, logical))


# How many floats are added one after another, since the error grows with them.
_MAX_ADDED = 1024


def _sum_of_parts(value: Any, axes: tuple[int, ...]) -> Any:
    """Return a sum of floats, of many of them as that of the sums of parts."""
    shape = np.shape(value)
    size = math.prod(shape[axis] for axis in axes)
    if not isinstance(size, int) or size <= _MAX_ADDED:
        return lax.reduce_sum(value, axes)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    parts = -(-size // _MAX_ADDED)
    value = lax.transpose(value, (*others, *axes))
    rows = lax.reshape(value, (*(shape[axis] for axis in others), size))
    none = [(0, 0, 0)] * len(others)
    rows = lax.pad(rows, np.float32(0), [*none, (0, parts * _MAX_ADDED - size, 0)])
    rows = lax.reshape(rows, (*rows.shape[:-1], parts, _MAX_ADDED))
    return _sum_of_parts(lax.reduce_sum(rows, (len(others) + 1,)), (len(others),))


def with_nan(made: Any, value: Any, axes: tuple[int, ...], start: Any) -> Any:
    """Return what was made of some dimensions, with NaN where one of the elements is."""
    is_nan = lax.reduce_or(value != value, axes)
    if not isinstance(start, np.ndarray) or np.isnan(start):
        is_nan = is_nan | (start != start)
    return jnp.where(is_nan, np.float32(np.nan), made)


def _extreme_and_place(op: LoweredOperation, order: str, values: Any, axis: int) -> list[Any]:
    (value, _), logical = values, op.logical_dtype()
    if is_unsigned(logical):
        value = unsigned_order(value)
    if not integer_bits(logical) and logical.kind != "b" and op.exact:
        nan = value != value
        beyond = np.float32(np.inf if order == "max" else -np.inf)
        ranked = jnp.where(nan, beyond, value)
        place = _place(order, ranked, axis)
        first = _place("max", nan.astype(np.int32), axis)
        place = jnp.where(lax.reduce_or(nan, (axis,)), first, place)
    else:
        place = _place(order, value.astype(np.int32) if value.dtype == np.bool_ else value, axis)
    taken = taken_along(values[0], jnp.expand_dims(place, axis), axis)
    return [lax.squeeze(taken, [axis]), place]


def _place(order: str, value: Any, axis: int) -> Any:
    """Return the first place of an extreme element, for some by comparing with it.

    The converter knows the reduction that finds it for static sizes alone, and the kernel has none
    for integers of 64 bits.
    """
    shape = np.shape(value)
    if value.dtype != np.int64 and all(isinstance(size, int) for size in shape):
        return (lax.argmax if order == "max" else lax.argmin)(value, axis, np.int32)
    extremum = (jnp.max if order == "max" else jnp.min)(value, axis, keepdims=True)
    places = lax.broadcasted_iota(np.int32, shape, axis)
    return jnp.min(jnp.where(value == extremum, places, np.int32(np.iinfo(np.int32).max)), axis)


RULES = {"stablehlo.reduce": LiftingRule(_reduce, ("dimensions",))}
