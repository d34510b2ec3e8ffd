"""Gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion, LiftingRule
from xla_call_module.stablehlo.combiners import combiner_of, complex_combiner_of
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces


def _vectors(places: SlicePlaces, indices: Any) -> Any:
    """Return the indices with their vectors along the last dimension, as JAX has them."""
    rank = np.ndim(indices)
    if places.vector_axis == rank:
        return lax.expand_dims(indices, [rank])
    if places.vector_axis == rank - 1:
        return indices
    return lax.transpose(indices, [*places.index_axes(rank), places.vector_axis])


def _gather(op: LiftedOperation) -> Any:
    return _take(op, op.integers("slice_sizes"))


def _dynamic_gather(op: LiftedOperation) -> Any:
    return _take(op, op.dimensions(2))


def _take(op: LiftedOperation, sizes: tuple[Dimension, ...]) -> Any:
    value, indices = op.array(0), op.array(1)
    places = SlicePlaces.of_gather(op)
    return lax.gather(
        value,
        _vectors(places, indices),
        _gather_numbers(places),
        sizes,
        indices_are_sorted=op.flag("indices_are_sorted"),
        mode=lax.GatherScatterMode.CLIP,  # as StableHLO has it, with no operation of its own
    )


def _gather_numbers(places: SlicePlaces) -> lax.GatherDimensionNumbers:
    return lax.GatherDimensionNumbers(
        offset_dims=places.window,
        collapsed_slice_dims=places.dropped,
        start_index_map=places.mapped,
        operand_batching_dims=places.batching,
        start_indices_batching_dims=places.leading,
    )


# The functions of `jax.lax` for what a scatter does with an element and an update.
SCATTERS: Mapping[str, Callable[..., Any]] = {
    "add": lax.scatter_add,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
    "multiply": lax.scatter_mul,
    "replace": lax.scatter,
    "subtract": lax.scatter_sub,
}

# The names in `SCATTERS` of what a scatter does with booleans.
SCATTERS_OF_BOOLS: Mapping[str, str] = {
    "add": "maximum",
    "and": "minimum",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "minimum",
    "or": "maximum",
    "replace": "replace",
}


def _scatter(op: LiftedOperation) -> Any:
    block = op.regions[0].block
    count, dtypes = len(op.operands) // 2, op.region_dtypes
    arrays = op.arrays
    values, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
    values, updates = (
        [_converted(array, dtype) for array, dtype in zip(part, dtypes, strict=False)]
        for part in (values, updates)
    )
    places = SlicePlaces.of_scatter(op)
    vectors = _vectors(places, indices)
    name = combiner_of(block) if count == 1 else ""
    if dtypes[0].kind == "b":
        name = SCATTERS_OF_BOOLS.get(name, "")
    if count == 1 and dtypes[0].kind == "c":
        name = name or complex_combiner_of(block)
    if name in SCATTERS:
        return SCATTERS[name](
            values[0],
            vectors,
            updates[0],
            _scatter_numbers(places),
            indices_are_sorted=op.flag("indices_are_sorted"),
            unique_indices=op.flag("unique_indices"),
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        )
    if op.flag("unique_indices"):
        return _combine_at(op.regions[0], values, vectors, updates, places)
    return _combine_in_order(op, values, vectors, updates, places)


def _converted(array: Any, dtype: np.dtype[Any]) -> Any:
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def _scatter_numbers(places: SlicePlaces) -> lax.ScatterDimensionNumbers:
    return lax.ScatterDimensionNumbers(
        update_window_dims=places.window,
        inserted_window_dims=places.dropped,
        scatter_dims_to_operand_dims=places.mapped,
        operand_batching_dims=places.batching,
        scatter_indices_batching_dims=places.leading,
    )


def _combine_at(
    region: LiftedRegion,
    values: Sequence[Any],
    vectors: Any,
    updates: Sequence[Any],
    places: SlicePlaces,
) -> list[Any]:
    """Combine slices with what is at their places in arrays, of which no two are the same."""
    numbers = _gather_numbers(places)
    shape = np.shape(values[0])
    windows = dict(zip(places.window_axes(len(shape)), places.window, strict=True))
    sizes = [
        np.shape(updates[0])[windows[axis]] if axis in windows else 1 for axis in range(len(shape))
    ]
    old = [
        lax.gather(value, vectors, numbers, sizes, mode=lax.GatherScatterMode.CLIP)
        for value in values
    ]
    return [
        lax.scatter(
            value,
            vectors,
            combined,
            _scatter_numbers(places),
            unique_indices=True,
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        )
        for value, combined in zip(values, region.of_elements(*old, *updates), strict=True)
    ]


def _combine_in_order(
    op: LiftedOperation,
    values: Sequence[Any],
    vectors: Any,
    updates: Sequence[Any],
    places: SlicePlaces,
) -> list[Any]:
    """Combine one slice after another, since several may have one place."""
    shape = np.shape(vectors)[:-1]
    if not all(isinstance(dim, int) for dim in shape):
        op.refuse("it combines in a way of its own, and it is not known how many slices")
    # The place along a batching dimension becomes a component of the vector.
    counts = [lax.broadcasted_iota(vectors.dtype, (*shape, 1), axis) for axis in places.leading]
    flat = lax.concatenate([vectors, *counts], len(shape)).reshape(math.prod(shape), -1)
    rank = np.ndim(updates[0])
    order = [*places.other_axes(rank), *places.window]
    lines = [
        lax.transpose(update, order).reshape(-1, *(update.shape[axis] for axis in places.window))
        for update in updates
    ]
    alone = SlicePlaces(
        mapped=(*places.mapped, *places.batching),
        batching=(),
        index_batching=(),
        dropped=tuple(sorted((*places.dropped, *places.batching))),
        window=tuple(range(len(places.window))),
        vector_axis=0,
    )

    def step(carried: Any, slices: Any) -> Any:
        vector, *parts = slices
        return tuple(_combine_at(op.regions[0], carried, vector, parts, alone)), None

    final, _ = lax.scan(step, tuple(values), (flat, *lines))
    return list(final)


def _torch_index_select(op: LiftedOperation) -> Any:
    """Take slices along a dimension, as torch.index_select does for each element of a batch."""
    value, indices = op.arrays
    batch, axis = op.integer("batch_dims"), op.integer("dim")

    def select(array: Any, places: Any) -> Any:
        return jnp.take(array, places, axis=axis - batch, mode="clip")

    for _ in range(batch):
        select = jax.vmap(select)
    return select(value, indices)


_GATHER = ("dimension_numbers", "indices_are_sorted")
RULES = {
    "stablehlo.dynamic_gather": LiftingRule(_dynamic_gather, _GATHER),
    "stablehlo.gather": LiftingRule(_gather, (*_GATHER, "slice_sizes")),
    "stablehlo.scatter": LiftingRule(
        _scatter, ("indices_are_sorted", "scatter_dimension_numbers", "unique_indices")
    ),
    "stablehlo.torch_index_select": LiftingRule(_torch_index_select, ("batch_dims", "dim")),
}
