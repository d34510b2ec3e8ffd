"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from bridge.lifting.derivatives.custom_derivatives import with_derivative
from bridge.lifting.elementwise_primitives import narrow_bits
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.combiners import (
    block_dtypes,
    combiner_of,
    complex_combiner_of,
    extreme_and_place_of,
    identity_of,
)

# The functions by which `jax.lax` knows reductions that have primitives, with derivatives.
REDUCERS: Mapping[str, Callable[..., Any]] = {
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


# What operations on numbers are, on booleans.
_OF_BOOLS = {"add": "or", "maximum": "or", "minimum": "and", "multiply": "and"}


def reducer_of(block: Any) -> str:
    """Return the name in `REDUCERS` of what a block combines by; empty if it is none of them."""
    name = combiner_of(block)
    if name and block_dtypes(block)[0].kind == "b":
        name = _OF_BOOLS.get(name, name)
    return name if name in REDUCERS else ""


def _reduce(op: LiftedOperation) -> Any:
    count = len(op.operands) // 2
    axes, (region,) = op.integers("dimensions"), op.regions
    dtypes = op.region_dtypes
    values, starts = (
        [lax.convert_element_type(array, dtype) if array.dtype != dtype else array
         for array, dtype in zip(part, dtypes[:count], strict=True)]
        for part in (op.arrays[:count], op.arrays[count:])
    )  # fmt: skip
    name = reducer_of(region.block)
    if count == 1 and dtypes[0].kind == "c":
        name = name or complex_combiner_of(region.block)
    if name:
        return _reduce_simply(name, values[0], starts[0], axes)
    if count == 2 and len(axes) == 1 and counts_along(op, axes[0]):
        order = extreme_and_place_of(region.block)
        if order and np.shape(values[0])[axes[0]] != 0 and _begins(order, starts):
            return _extreme_and_place(op, order, values, axes[0])
    if not all(isinstance(start, np.ndarray) for start in starts):
        return fold_pairwise(op, values, starts, axes)

    def combine(left: Any, right: Any) -> Any:
        return tuple(region(*left, *right))

    return list(lax.reduce(tuple(values), tuple(starts), combine, axes))


def fold_pairwise(
    op: LiftedOperation, values: Sequence[Any], starts: Sequence[Any], axes: Sequence[int]
) -> list[Any]:
    """Return what a region makes of the elements of some dimensions, pair by pair.

    It begins with what is computed, which the primitive of JAX cannot be mapped over.
    """
    (region,) = op.regions
    shape = np.shape(values[0])
    kept = [dim for axis, dim in enumerate(shape) if axis not in axes]
    order = [*axes, *(axis for axis in range(len(shape)) if axis not in axes)]
    size = math.prod(shape[axis] for axis in axes)
    if not isinstance(size, int):
        op.refuse("it reduces an unknown number of elements, and begins with what is computed")
    lines = [lax.reshape(lax.transpose(value, order), (size, *kept)) for value in values]
    results = [jnp.broadcast_to(start, kept) for start in starts]
    while size > 1:
        half = size // 2
        pairs = [line[at : 2 * half : 2] for at in (0, 1) for line in lines]
        odd = [line[2 * half :] for line in lines]
        combined = region.of_elements(*pairs)
        lines = [lax.concatenate(pair, 0) for pair in zip(combined, odd, strict=True)]
        size = size - half
    if size == 0:
        return results
    return region.of_elements(*results, *(lax.squeeze(line, [0]) for line in lines))


def _reduce_simply(name: str, value: Any, start: Any, axes: Sequence[int]) -> Any:
    dtype = jnp.result_type(value)
    if isinstance(start, np.ndarray) and is_identity(start, identity_of(name, dtype)):
        return _reduce_without_start(name, value, axes)
    reducer = REDUCERS[name]

    def known(value: Any, start: Any) -> Any:
        reduced = _reduce_without_start(name, value, axes)
        return reducer(reduced, jnp.broadcast_to(start, np.shape(reduced)))

    def compute(value: Any, start: Any) -> Any:
        return lax.reduce(value, start, reducer, axes)

    if is_idempotent(name) or narrow_bits(dtype):
        return known(value, start)
    return begin_with(compute, known, value, start)


def _reduce_without_start(name: str, value: Any, axes: Sequence[int]) -> Any:
    """Return a reduction; JAX has no logical ones of integers of fewer than 8 bits."""
    dtype = jnp.result_type(value)
    if narrow_bits(dtype) and name in ("and", "or", "xor"):
        value = lax.convert_element_type(value, np.uint8 if dtype.name[0] == "u" else np.int8)
    return lax.convert_element_type(_REDUCTIONS[name](value, tuple(axes)), dtype)


def begin_with(
    compute: Callable[..., Any], known: Callable[..., Any], value: Any, start: Any
) -> Any:
    """Return a reduction that begins with a number which is not the identity.

    StableHLO leaves open how often such a number is taken in, and XLA for CPUs takes it in once for
    each part of a long dimension, so the reduction has to be the operation that the module has.
    """
    if isinstance(start, np.ndarray):
        return with_derivative(lambda x: known(x, start), lambda x: compute(x, start))(value)
    return with_derivative(known, _mapped_as(compute, known))(value, start)


def _mapped_as(compute: Callable[..., Any], known: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is another one as soon as it is mapped over its second argument."""
    function = custom_vmap(compute)

    @function.def_vmap
    def map_over(_: int, is_mapped: Sequence[bool], value: Any, start: Any) -> tuple[Any, bool]:
        axes = tuple(0 if mapped else None for mapped in is_mapped)
        mapped = jax.vmap(known, axes)
        if not is_mapped[1]:
            mapped = _mapped_as(jax.vmap(compute, axes), mapped)
        return mapped(value, start), True

    result: Callable[..., Any] = function
    return result


def is_idempotent(name: str) -> bool:
    """Return whether a reduction changes nothing where it takes an element in twice."""
    return name in ("and", "maximum", "minimum", "or")


def is_identity(start: np.ndarray[Any, Any], identity: np.ndarray[Any, Any]) -> bool:
    """Return whether a number is the one that changes nothing; the sign of 0 does not matter."""
    return bool(start.astype(identity.dtype) == identity)


def counts_along(op: LiftedOperation, axis: int) -> bool:
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
    return is_identity(starts[0], identity) and not starts[1].any()


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


RULES = {"stablehlo.reduce": LiftingRule(_reduce, ("dimensions",))}
