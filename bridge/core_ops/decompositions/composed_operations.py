"""Operations that JAX has no primitive for, as lifting composes them of others.

They are those of older modules, such as batch normalizations. What an operation is composed of is
its rule in `bridge.lifting`; here it is only named.
"""

from __future__ import annotations

from bridge.core_ops.decompositions.decomposition import Decomposition, table_with

_NAMES = ("batch_norm_grad", "batch_norm_inference", "batch_norm_training")
COMPOSED_OPERATIONS = Decomposition(
    name="composed operations",
    table=table_with({}, target="operations that JAX has primitives for"),
    operations=frozenset(f"stablehlo.{name}" for name in _NAMES),
)
