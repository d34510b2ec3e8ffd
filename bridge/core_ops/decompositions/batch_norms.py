"""Batch normalizations, which older modules have as operations of their own.

JAX has none, so that lifting computes them of sums already, as XLA does.
"""

from __future__ import annotations

from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.lifting.normalization_primitives import RULES

__all__ = ["BATCH_NORMS_AS_SUMS"]

BATCH_NORMS_AS_SUMS = Decomposition(
    name="batch normalizations",
    table=table_with(RULES, target="sums"),
    operations=frozenset(RULES),
)
