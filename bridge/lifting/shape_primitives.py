"""Operations that move elements, and those that make arrays of none: shapes, slices, constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.elementwise_primitives import in_bytes
from bridge.lifting.known_values import (
    Dimension,
    LiftedValue,
    as_array,
    dimensions_of,
    of_dimensions,
)
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.elements import read_elements


def _constant(op: LiftedOperation) -> LiftedValue:
    return read_elements(op.raw)


def _iota(op: LiftedOperation) -> LiftedValue:
    return _count(op, op.shape)


def _dynamic_iota(op: LiftedOperation) -> LiftedValue:
    return _count(op, op.dimensions(0))


def _count(op: LiftedOperation, shape: Sequence[Dimension]) -> LiftedValue:
    axis = op.integer("iota_dimension")
    return lax.broadcasted_iota(op.dtype, shape, axis)


def _dimension_size(op: LiftedOperation) -> LiftedValue:
    size = np.shape(op.operands[0])[op.integer("dimension")]
    return of_dimensions(np.array(size, object), op.dtype)


def _set_dimension_size(op: LiftedOperation) -> LiftedValue:
    (size,), axis = op.dimensions(1), op.integer("dimension")
    if size != np.shape(op.operands[0])[axis]:
        op.refuse("it makes a dimension smaller than its type says, which JAX's arrays cannot be")
    return op.operands[0]


def _broadcast_in_dim(op: LiftedOperation) -> Any:
    return _broadcast_along(op, op.shape)


def _dynamic_broadcast_in_dim(op: LiftedOperation) -> Any:
    return _broadcast_along(op, op.dimensions(1))


def _broadcast_along(op: LiftedOperation, shape: Sequence[Dimension]) -> Any:
    """Return an array broadcast to a shape; JAX keeps the order of its axes, StableHLO need not."""
    value, axes = op.array(0), op.integers("broadcast_dimensions")
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(axes))):
        value = lax.transpose(value, order)
    return lax.broadcast_in_dim(value, shape, sorted(axes))


def _broadcast(op: LiftedOperation) -> Any:
    return lax.broadcast(op.array(0), op.integers("broadcast_sizes"))


def _reshape(op: LiftedOperation) -> Any:
    return lax.reshape(op.array(0), op.shape)


def _dynamic_reshape(op: LiftedOperation) -> Any:
    return lax.reshape(op.array(0), op.dimensions(1))


def _transpose(op: LiftedOperation) -> Any:
    return lax.transpose(op.array(0), op.integers("permutation"))


def _reverse(op: LiftedOperation) -> Any:
    return lax.rev(op.array(0), op.integers("dimensions"))


def _concatenate(op: LiftedOperation) -> Any:
    return lax.concatenate(op.arrays, op.integer("dimension"))


def _pad(op: LiftedOperation) -> Any:
    low, high, inner = (
        op.integers(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    return lax.pad(op.array(0), op.array(1), list(zip(low, high, inner, strict=True)))


def _dynamic_pad(op: LiftedOperation) -> Any:
    value, padding = op.array(0), op.array(1)
    return lax.pad(value, padding, list(zip(*map(op.dimensions, (2, 3, 4)), strict=True)))


def _slice(op: LiftedOperation) -> Any:
    starts, limits, strides = (
        op.integers(name) for name in ("start_indices", "limit_indices", "strides")
    )
    return lax.slice(op.array(0), starts, limits, strides)


def _real_dynamic_slice(op: LiftedOperation) -> Any:
    sizes = None if dimensions_of(op.operands[1]) is not None else _sizes_added(op)
    if sizes is None or any(stride != 1 for stride in op.dimensions(3)):
        starts, limits, strides = map(op.dimensions, (1, 2, 3))
        return lax.slice(op.array(0), starts, limits, strides)
    value = op.array(0)
    return lax.dynamic_slice(value, _starts(op, sizes), sizes, allow_negative_indices=False)


def _sizes_added(op: LiftedOperation) -> tuple[Dimension, ...] | None:
    """Return the sizes of a slice whose limits are its starts and these, as JAX writes it."""
    start, limit = op.raw.operands[1], op.raw.operands[2].owner
    if getattr(limit, "name", "") != "stablehlo.add":
        return None
    others = [operand for operand in limit.operands if operand != start]
    return dimensions_of(op.around[others[0]]) if len(others) == 1 else None


def _starts(op: LiftedOperation, sizes: Sequence[Dimension]) -> list[Any]:
    """Return the starts of a slice, as they were before they were clamped to its range."""
    vector, clamp = op.raw.operands[1], op.raw.operands[1].owner
    if getattr(clamp, "name", "") == "stablehlo.clamp":
        low, middle, high = clamp.operands
        last = [dim - size for dim, size in zip(op.array(0).shape, sizes, strict=True)]
        clamped = [dimensions_of(op.around[bound]) for bound in (low, high)]
        vector = middle if clamped == [(0,) * len(last), tuple(last)] else vector
    parts = getattr(vector.owner, "name", "") == "stablehlo.concatenate" and [
        as_array(op.around[part]) for part in vector.owner.operands
    ]
    if parts and all(part.shape == (1,) for part in parts):
        return [lax.reshape(part, ()) for part in parts]
    return list(as_array(op.around[vector]))


def _dynamic_slice(op: LiftedOperation) -> Any:
    value, *starts = op.arrays
    sizes = op.integers("slice_sizes")
    return lax.dynamic_slice(value, _narrowed(starts), sizes, allow_negative_indices=False)


def _dynamic_update_slice(op: LiftedOperation) -> Any:
    value, update, *starts = op.arrays
    return lax.dynamic_update_slice(value, update, _narrowed(starts), allow_negative_indices=False)


def _narrowed(starts: Sequence[Any]) -> list[Any]:
    """Return starts in 32 bits.

    Lifted code is traced in JAX's 64-bit mode where it has such dtypes, and lowered without: the
    rules of JAX that lower a batched slice trace anew, and refuse a start of 64 bits there.
    """
    return [_in_32_bits(start) if start.dtype.itemsize > 4 else start for start in starts]


def _in_32_bits(start: Any) -> Any:
    """Return a start in 32 bits, and 0 for a negative one, which is where it begins anyway."""
    least, most = start.dtype.type(0), start.dtype.type(np.iinfo(np.int32).max)
    if isinstance(start, np.ndarray | np.generic):
        return np.clip(start, least, most).astype(np.int32)
    return lax.convert_element_type(lax.clamp(least, start, most), np.int32)


RULES = {
    "stablehlo.broadcast": LiftingRule(_broadcast, ("broadcast_sizes",)),
    "stablehlo.broadcast_in_dim": LiftingRule(_broadcast_in_dim, ("broadcast_dimensions",)),
    "stablehlo.concatenate": LiftingRule(in_bytes(_concatenate), ("dimension",)),
    "stablehlo.constant": LiftingRule(_constant, ("value",)),
    "stablehlo.dynamic_broadcast_in_dim": LiftingRule(
        _dynamic_broadcast_in_dim,
        (
            "broadcast_dimensions",
            "known_expanding_dimensions",
            "known_nonexpanding_dimensions",
        ),
    ),
    "stablehlo.dynamic_iota": LiftingRule(_dynamic_iota, ("iota_dimension",)),
    "stablehlo.dynamic_pad": LiftingRule(_dynamic_pad),
    "stablehlo.dynamic_reshape": LiftingRule(_dynamic_reshape),
    "stablehlo.dynamic_slice": LiftingRule(_dynamic_slice, ("slice_sizes",)),
    "stablehlo.dynamic_update_slice": LiftingRule(_dynamic_update_slice),
    "stablehlo.get_dimension_size": LiftingRule(_dimension_size, ("dimension",)),
    "stablehlo.iota": LiftingRule(_iota, ("iota_dimension",)),
    "stablehlo.pad": LiftingRule(
        _pad, ("edge_padding_low", "edge_padding_high", "interior_padding")
    ),
    "stablehlo.real_dynamic_slice": LiftingRule(_real_dynamic_slice),
    "stablehlo.reshape": LiftingRule(_reshape),
    "stablehlo.reverse": LiftingRule(_reverse, ("dimensions",)),
    "stablehlo.set_dimension_size": LiftingRule(_set_dimension_size, ("dimension",)),
    "stablehlo.slice": LiftingRule(_slice, ("limit_indices", "start_indices", "strides")),
    "stablehlo.transpose": LiftingRule(_transpose, ("permutation",)),
}
