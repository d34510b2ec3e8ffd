"""Operations that move elements, where LiteRT's kernels do not take all that StableHLO allows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.shape_primitives import RULES as OF_JAX
from bridge.litert.lowering.lowered_operation import LoweredOperation


def _reverse(op: LoweredOperation) -> Any:
    """Reverse dimensions that lie side by side at once, which is all that the kernel does."""
    value = op.array(0)
    for axes in _runs(sorted(op.integers("dimensions"))):
        value = lax.rev(value, axes)
    return value


def _runs(axes: Sequence[int]) -> list[list[int]]:
    """Return numbers in ascending order as runs of successive ones.

    >>> _runs([0, 1, 3])
    [[0, 1], [3]]
    """
    grouped = itertools.groupby(enumerate(axes), lambda pair: pair[1] - pair[0])
    return [[axis for _, axis in group] for _, group in grouped]


def _concatenate(op: LoweredOperation) -> Any:
    """Join arrays, without those that are empty."""
    arrays, axis = op.arrays, op.integer("dimension")
    nonempty = [array for array in arrays if np.shape(array)[axis] != 0]
    return lax.concatenate(nonempty or arrays[:1], axis) if len(nonempty) != 1 else nonempty[0]


def _pad(op: LoweredOperation) -> Any:
    value, padding = op.array(0), op.array(1)
    low, high, inner = (
        op.integers(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    triples = list(zip(low, high, inner, strict=True))
    if 0 in np.shape(value):
        return jnp.broadcast_to(padding, op.shape)
    return lax.pad(value, padding, triples) if any(map(any, triples)) else value


RULES = {
    **OF_JAX,
    **{
        name: LiftingRule(lower, OF_JAX[name].attributes)
        for name, lower in (
            ("stablehlo.concatenate", _concatenate),
            ("stablehlo.pad", _pad),
            ("stablehlo.reverse", _reverse),
        )
    },
}
