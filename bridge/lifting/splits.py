"""Slices that are the parts of one array: `jax.lax.split`.

JAX lowers `split` to a slice for each part. The transpose of a slice is a pad of its own size, and
the sum of these costs more than the one concatenation that is the transpose of `split`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from bridge.lifting.compile_time_folding import fold
from bridge.lifting.known_values import Dimension, LiftedValue, dimensions_of
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.constant_evaluation import ConstantValues

_SLICES = ("stablehlo.real_dynamic_slice", "stablehlo.slice")
# Operations that compute the bounds of a slice which comes later in its block.
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class _Part:
    """A slice along one axis.

    Attributes:
        raw: the operation, as MLIR has it.
        axis: the axis.
        start: the first element along it.
        end: the one after the last.
    """

    raw: Any
    axis: int
    start: int
    end: int


def slices_in(block: Any) -> set[Any]:
    """Return the operations of a block that are slices."""
    return {view.operation for view in block if view.operation.name in _SLICES}


def split_of(
    raw: Any,
    array: LiftedValue,
    values: ChainMap[Any, LiftedValue],
    around: Container[Any],
) -> dict[Any, LiftedValue]:
    """Return the results of the slices of one array that are the parts of it."""
    users = (use.owner.operation for use in raw.operands[0].uses)
    slices = [user for user in users if user in around]
    made: dict[Any, LiftedValue] = dict.fromkeys(slices)
    if len(slices) < 2 or not isinstance(array, jax.Array):
        return made
    scratch = values.new_child()
    parts = [_part_of(one, np.shape(array), scratch) for one in slices]
    for chain in _chains([part for part in parts if part is not None]):
        axis = chain[0].axis
        if len(chain) > 1 and chain[-1].end == np.shape(array)[axis]:
            results = lax.split(array, [part.end - part.start for part in chain], axis)
            made.update(zip((part.raw for part in chain), results, strict=True))
    return made


def _part_of(
    raw: Any, shape: Sequence[Dimension], values: ChainMap[Any, LiftedValue]
) -> _Part | None:
    """Return a slice that is whole along all axes but one; None of another."""
    bounds = _bounds_of(raw, values)
    if bounds is None or any(stride != 1 for stride in bounds[2]):
        return None
    starts, ends, _ = bounds
    places = enumerate(zip(starts, ends, shape, strict=True))
    cut = [n for n, (start, end, size) in places if start != 0 or end != size]
    if len(cut) != 1:
        return None
    (axis,) = cut
    is_static = all(isinstance(n, int) for n in (starts[axis], ends[axis], shape[axis]))
    return _Part(raw, axis, starts[axis], ends[axis]) if is_static else None


def _bounds_of(
    raw: Any, values: ChainMap[Any, LiftedValue]
) -> Sequence[tuple[Dimension, ...]] | None:
    """Return the starts, the ends and the strides of a slice; None if they are not known."""
    if raw.name == "stablehlo.slice":
        attributes = Attributes(raw)
        return [attributes.integers(k) for k in ("start_indices", "limit_indices", "strides")]
    # Those that are known while JAX traces, also ones that are computed later on.
    known_values = ConstantValues(values, evaluate=_fold_owner, depth=_MAX_DEPTH)
    bounds = [dimensions_of(known_values.of(value)) for value in list(raw.operands)[1:]]
    known = [bound for bound in bounds if bound is not None]
    return known if len(known) == len(bounds) else None


def _fold_owner(value: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
    return fold(value.owner, operands)


def _chains(parts: Sequence[_Part]) -> Iterator[Sequence[_Part]]:
    """Yield the chains of parts of which each one begins where the one before ends, from 0 on."""
    chains: list[list[_Part]] = []
    for part in sorted(parts, key=lambda part: (part.axis, part.start, part.end)):
        fitting = (c for c in chains if (c[-1].axis, c[-1].end) == (part.axis, part.start))
        chain = next(fitting, None)
        if chain is not None:
            chain.append(part)
        elif part.start == 0:
            chains.append([part])
    yield from chains
