"""Sorts, by LiteRT's kernel for the greatest elements: the only one that orders."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core._jax import is_certain
from bridge.lifting.custom_call_primitives import COMPOSITES as OF_JAX
from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.reduction_primitives import counts_along
from bridge.lifting.sorting_primitives import CUSTOM_CALLS as OF_JAX_CALLS
from bridge.lifting.sorting_primitives import (
    approximation_settings,
    compared_direction,
    total_order,
)
from bridge.litert.lowering import bit_operations as bits
from bridge.litert.lowering.arithmetic_lowerings import is_unsigned, unsigned_order
from bridge.litert.lowering.indexing_lowerings import take_rows
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits
from xla_call_module.stablehlo.attributes import dictionary
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of


def _sort(op: LoweredOperation) -> Any:
    values = op.arrays
    axis = op.integer("dimension", -1) % max(1, len(op.types[0].shape))
    (region,) = op.regions
    keys = sort_keys_of(region.block)
    if keys is None:
        op.refuse("its comparator is not the order of one operand after another")
    ranks = [_rank(key, values[key.operand], op.operand_dtype(key.operand)) for key in keys]
    order = order_of(ranks, axis)
    return [taken_along(value, order, axis) for value in values]


def order_of(ranks: list[Any], axis: int, count: int | None = None) -> Any:
    """Return the indices that sort rows by integers, the first of which decides; stable."""
    ranks = [jnp.moveaxis(jnp.asarray(rank), axis, -1) for rank in ranks]
    size = ranks[0].shape[-1]
    kept = size if count is None else count
    if is_certain(lambda: size <= 1) or 0 in ranks[0].shape:
        return jnp.zeros((*ranks[0].shape[:-1], kept), np.int32).swapaxes(axis, -1)
    order: Any = None
    for number, rank in enumerate(reversed(ranks)):
        given = rank if order is None else taken_along(rank, order, -1)
        # The greatest ones come first, of equal ones the first.
        wanted = kept if number == len(ranks) - 1 else size
        step = lax.top_k(bits.bit_not(given), wanted)[1]
        order = step if order is None else taken_along(order, step, -1)
    return jnp.moveaxis(order, -1, axis)


def taken_along(value: Any, order: Any, axis: int) -> Any:
    """Return the elements at indices along a dimension, which are in bounds."""
    value, order = (jnp.moveaxis(jnp.asarray(array), axis, -1) for array in (value, order))
    count, size = math.prod(value.shape[:-1]), value.shape[-1]
    if count * order.shape[-1] == 0:
        return jnp.moveaxis(jnp.zeros(order.shape, value.dtype), -1, axis)
    starts = lax.broadcasted_iota(np.int32, (count, order.shape[-1]), 0) * jnp.asarray(
        size, np.int32
    )
    flat = (order.reshape(count, -1) + starts).reshape(-1)
    made = take_rows(value.reshape(count * size, 1), flat).reshape(order.shape)
    return jnp.moveaxis(made, -1, axis)


def _rank(key: SortKey, value: Any, logical: np.dtype[Any]) -> Any:
    """Return int32 in the order of a key."""
    value = jnp.asarray(value)
    if logical.kind == "b":
        value = value.astype(np.int32)
    elif is_unsigned(logical):
        value = unsigned_order(value)
    elif not integer_bits(logical):
        if not key.signed_zeros:
            value = jnp.where(value == 0, jnp.zeros_like(value), value)
        ranked = total_order(value)
        if not key.signed_nans:
            ranked = jnp.where(value != value, np.int32(0x7FC00000), ranked)
        value = ranked
    return bits.bit_not(value) if key.descending else value


def _top_k(op: LoweredOperation) -> Any:
    options = dictionary(op.raw.attributes["composite_attributes"])
    if (
        options.keys() - {"is_stable", "k", "largest"}
        or str(options.get("largest", True)).lower() != "true"
    ):
        op.refuse("it has options that JAX's top_k does not")
    value, count = op.array(0), int(options["k"].value)
    axis = len(np.shape(value)) - 1
    key = SortKey(0, descending=True, signed_zeros=True, signed_nans=True)
    order = order_of([_rank(key, value, op.operand_dtype())], axis, count)
    return [taken_along(value, order, axis), order]


def _approximate(op: LoweredOperation) -> Any:
    """Return the greatest or least elements themselves, as XLA does on a CPU."""
    axis, settings = approximation_settings(op)
    direction, count = compared_direction(op), op.types[0].shape[axis]
    is_known = direction in ("GT", "LT") and counts_along(op, axis)
    if not is_known or settings.get("aggregate_to_topk", "true") != "true" or count is None:
        op.refuse("its comparator, its second operand or its settings are not those of a top k")
    value = op.array(0)
    key = SortKey(0, descending=direction == "GT", signed_zeros=False)
    order = order_of([_rank(key, value, op.operand_dtype())], axis, count)
    return [taken_along(value, order, axis), order]


RULES = {"stablehlo.sort": LiftingRule(_sort, ("dimension", "is_stable"))}
COMPOSITES = {"chlo.top_k": LiftingRule(_top_k, OF_JAX["chlo.top_k"].attributes)}
CUSTOM_CALLS = {
    "ApproxTopK": LiftingRule(_approximate, OF_JAX_CALLS["ApproxTopK"].attributes),
}
