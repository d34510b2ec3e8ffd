"""Gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.combiners import combiner_of
from xla_call_module.stablehlo.dimension_numbers import SlicePlaces

__all__ = ["RULES"]


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
    numbers = lax.GatherDimensionNumbers(
        offset_dims=places.window,
        collapsed_slice_dims=places.dropped,
        start_index_map=places.mapped,
        operand_batching_dims=places.batching,
        start_indices_batching_dims=places.leading,
    )
    return lax.gather(
        value,
        _vectors(places, indices),
        numbers,
        sizes,
        indices_are_sorted=op.flag("indices_are_sorted"),
        mode=lax.GatherScatterMode.CLIP,  # as StableHLO has it, with no operation of its own
    )


# The functions of `jax.lax` for what a scatter does with an element and an update.
_SCATTERS: Mapping[str, Callable[..., Any]] = {
    "add": lax.scatter_add,
    "maximum": lax.scatter_max,
    "minimum": lax.scatter_min,
    "multiply": lax.scatter_mul,
    "replace": lax.scatter,
}


def _scatter(op: LiftedOperation) -> Any:
    name = combiner_of(op.regions[0].block)
    if len(op.operands) != 3 or name not in _SCATTERS:
        op.refuse("it combines elements in another way than by a sum, a product or an extreme")
    value, indices, updates = op.arrays
    places = SlicePlaces.of_scatter(op)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=places.window,
        inserted_window_dims=places.dropped,
        scatter_dims_to_operand_dims=places.mapped,
        operand_batching_dims=places.batching,
        scatter_indices_batching_dims=places.leading,
    )
    return _SCATTERS[name](
        value,
        _vectors(places, indices),
        updates,
        numbers,
        indices_are_sorted=op.flag("indices_are_sorted"),
        unique_indices=op.flag("unique_indices"),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


_GATHER = ("dimension_numbers", "indices_are_sorted")
RULES = {
    "stablehlo.dynamic_gather": LiftingRule(_dynamic_gather, _GATHER),
    "stablehlo.gather": LiftingRule(_gather, (*_GATHER, "slice_sizes")),
    "stablehlo.scatter": LiftingRule(
        _scatter, ("indices_are_sorted", "scatter_dimension_numbers", "unique_indices")
    ),
}
