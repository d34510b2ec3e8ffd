"""Sorts, and the greatest and least elements."""

from __future__ import annotations

import math
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.elementwise_primitives import in_bytes
from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from bridge.lifting.reduction_primitives import counts_along
from xla_call_module.stablehlo.attributes import comparison_direction, dictionary
from xla_call_module.stablehlo.sort_keys import SortKey, sort_keys_of
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

# How many elements of all rows together are each compared with each of their row.
MAX_COMPARISONS = 1 << 24


def _sort(op: LiftedOperation) -> Any:
    values, axis = op.arrays, op.integer("dimension", -1) % max(1, len(op.types[0].shape))
    (region,), is_stable = op.regions, op.flag("is_stable")
    keys = sort_keys_of(region.block)
    if keys is None:
        order = _pairwise_order(op, values, axis)
        return [jnp.take_along_axis(value, order, axis) for value in values]
    plain = [SortKey(n, descending=False, signed_zeros=False) for n in range(len(keys))]
    if keys == plain or (keys[0] == SortKey(0, False, True, True) and _is_exact(values[0])):
        sorted_: Any = lax.sort(values, dimension=axis, is_stable=is_stable, num_keys=len(keys))
        return list(sorted_)
    ranks = [rank for key in keys for rank in ranks_of(key, values[key.operand])]
    several: Any = lax.sort(
        [*ranks, *values], dimension=axis, is_stable=is_stable, num_keys=len(ranks)
    )
    return list(several[len(ranks) :])


def _is_exact(value: Any) -> bool:
    """Return whether equal elements are the same, without signs of zeros and of NaNs."""
    return not jnp.issubdtype(jnp.result_type(value), jnp.inexact)


def ranks_of(key: SortKey, value: Any) -> list[Any]:
    """Return integers in the order of a key, two arrays for complex numbers."""
    dtype = jnp.result_type(value)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = (lax.real(value), lax.imag(value))
        return [rank for part in parts for rank in ranks_of(key, part)]
    if dtype == np.bool_:
        value = lax.convert_element_type(value, np.uint8)
    elif jnp.issubdtype(dtype, jnp.floating):
        value = lax.stop_gradient(value)
        if _bits_of(dtype) < 8:
            value = lax.convert_element_type(value, np.float32)
        if not key.signed_zeros:
            value = jnp.where(value == 0, jnp.zeros_like(value), value)
        if not key.signed_nans:
            value = jnp.where(value != value, jnp.full_like(value, np.nan), value)
        value = total_order(value)
    return [lax.bitwise_not(value) if key.descending else value]


def total_order(value: Any) -> Any:
    """Return integers in the order of floats with -NaN < -infinity < -0 < 0 < infinity < NaN."""
    dtype = jnp.result_type(value)
    bits = 8 * dtype.itemsize
    signed = lax.bitcast_convert_type(value, np.dtype(f"int{bits}"))
    most = np.array((1 << (bits - 1)) - 1, signed.dtype)
    flipped = lax.bitwise_xor(signed, jnp.broadcast_to(most, signed.shape))
    return jnp.where(signed < 0, flipped, signed)


def _bits_of(dtype: Any) -> int:
    info: Any = jnp.finfo  # which has no types
    return int(info(dtype).bits)


def _pairwise_order(op: LiftedOperation, values: list[Any], axis: int) -> Any:
    """Return the index of the element for each place, by comparing each with each of its row."""
    shape = np.shape(values[0])
    size = shape[axis]
    if not all(isinstance(dim, int) for dim in shape) or math.prod(shape) * size > MAX_COMPARISONS:
        op.refuse(
            f"its comparator is not the order of one operand after another, and {size} elements "
            "in a row are too many to compare each with each",
            "sort by keys, as jax.lax.sort does",
        )
    square = (*shape[:axis], size, *shape[axis:])
    own, other = (
        [jnp.broadcast_to(jnp.expand_dims(value, axis + at), square) for value in values]
        for at in (1, 0)
    )
    before, after = (
        op.regions[0].of_elements(*(value for pair in zip(*sides, strict=True) for value in pair))
        for sides in ((own, other), (other, own))
    )
    numbers = np.arange(size)
    beside = [*range(axis), *range(axis + 2, len(square))]
    earlier, later = (
        jnp.expand_dims(compare(numbers[:, None], numbers), beside)
        for compare in (np.less, np.greater)
    )
    # XLA turns around what a comparator says to be before each other.
    tied = jnp.where(before[0], later, earlier)
    precedes = jnp.where(jnp.equal(before[0], after[0]), tied, before[0])
    place = jnp.sum(precedes, axis=axis, dtype=np.int32)
    return jnp.argsort(place, axis=axis)


def top_k(op: LiftedOperation) -> Any:
    """Return the greatest elements of the last dimension, and where; None for other options."""
    name = "composite_attributes" if op.has("composite_attributes") else "mhlo.attributes"
    options = dictionary(op.raw.attributes[name])
    if options.keys() - {"is_stable", "k", "largest"} or "k" not in options:
        return None
    if str(options.get("largest", True)).lower() != "true":
        return None
    return _greatest(op, int(options["k"].value))


def _mhlo_top_k(op: LiftedOperation) -> Any:
    results = top_k(op) if op.has("mhlo.attributes") else None
    if results is None:
        op.refuse("it has options that JAX's top_k does not")
    return results


def _dynamic_top_k(op: LiftedOperation) -> Any:
    (count,) = op.dimensions(1)
    return _greatest(op, count)


def _greatest(op: LiftedOperation, count: Dimension) -> list[Any]:
    values, places = lax.top_k(op.array(0), count)
    return [values, lax.convert_element_type(places, op.dtype_of(1))]


_SETTING = re.compile(r"(\w+) = ([-+.\w]+)")


def _approximate(op: LiftedOperation) -> Any:
    count = op.types[0].shape[approximation_settings(op)[0]]
    if count is None:
        op.refuse("it is not known how many elements it returns")
    return _nearly_greatest(op, count)


def _dynamic_approximate(op: LiftedOperation) -> Any:
    (count,) = op.dimensions(4)
    return _nearly_greatest(op, count)


def approximation_settings(op: LiftedOperation) -> tuple[int, dict[str, str]]:
    """Return the dimension in which it looks, and the other settings as they are written."""
    config = op.text("mhlo.backend_config") or op.text("backend_config")
    settings = dict(_SETTING.findall(config))
    return int(settings["reduction_dim"]), settings


def _nearly_greatest(op: LiftedOperation, count: Dimension) -> list[Any]:
    """Return what `jax.lax.approx_max_k` or `approx_min_k` does."""
    axis, settings = approximation_settings(op)
    find = {"GT": lax.approx_max_k, "LT": lax.approx_min_k}.get(compared_direction(op))
    known = {
        "aggregate_to_topk", "is_fallback", "recall_target", "reduction_dim",
        "reduction_input_size_override", "top_k",
    }  # fmt: skip
    if find is None or not counts_along(op, axis) or settings.keys() - known - {"f32", "i64"}:
        op.refuse("its comparator, its second operand or its settings are not those of JAX")
    results = find(
        op.array(0),
        count,
        reduction_dimension=axis,
        recall_target=float(settings["recall_target"]),
        reduction_input_size_override=int(settings.get("reduction_input_size_override", -1)),
        aggregate_to_topk=settings.get("aggregate_to_topk", "true") == "true",
    )
    return list(results)


def compared_direction(op: LiftedOperation) -> str:
    """Return how the function that a custom call names compares its first two arguments."""
    if not op.regions:
        return ""
    body = op.regions[0].block
    comparisons = [v.operation for v in body if v.operation.name == "stablehlo.compare"]
    if len(comparisons) != 1 or list(comparisons[0].operands) != list(body.arguments)[:2]:
        return ""
    return comparison_direction(comparisons[0])


RULES = {"stablehlo.sort": LiftingRule(in_bytes(_sort), ("dimension", "is_stable"))}
CUSTOM_CALLS = {
    "ApproxTopK": LiftingRule(_approximate, CUSTOM_CALL_ATTRIBUTES),
    "mhlo.topk": LiftingRule(_mhlo_top_k, CUSTOM_CALL_ATTRIBUTES),
    "stablehlo.dynamic_approx_top_k": LiftingRule(_dynamic_approximate, CUSTOM_CALL_ATTRIBUTES),
    "stablehlo.dynamic_top_k": LiftingRule(_dynamic_top_k, CUSTOM_CALL_ATTRIBUTES),
}
