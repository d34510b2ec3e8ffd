"""What the node of a call carries of its `Exported`, serialized once for those that are equal.

JAX serializes it in Python, which takes a node longer than all else that is written in it; and but
for the module it is the same for all functions of one name with the same arguments and results.
"""

from __future__ import annotations

import dataclasses
import functools

from jax import export

from bridge.core._jax import cut_vjp
from xla_call_module.call import Carried
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import strip_exported

__all__ = ["carried_by"]


def carried_by(exported: export.Exported) -> Carried:
    """The `Exported` without its module, with flat arguments where it has to be.

    Args:
        exported: of which it is.
    """
    avals = [*exported.in_avals, *exported.out_avals]
    # Dimension variables of two functions cannot be compared.
    if not any(export.is_symbolic_dim(dim) for aval in avals for dim in aval.shape):
        try:
            return _serialized(_Bare(exported))
        except (TypeError, UnsupportedError):  # it has no hash, or is flat
            pass
    return strip_exported(exported, allow_flat_trees=True)


class _Bare:
    """An `Exported` without its module and its VJP, equal to others with the same fields."""

    __slots__ = ("_fields", "exported")

    def __init__(self, exported: export.Exported) -> None:
        """Keep nothing that belongs to the function."""
        bare = cut_vjp(dataclasses.replace(exported, mlir_module_serialized=b""), 0)
        self.exported = bare
        self._fields = tuple(getattr(bare, field.name) for field in dataclasses.fields(bare))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bare) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)


@functools.lru_cache(maxsize=64)
def _serialized(bare: _Bare) -> Carried:
    return strip_exported(bare.exported, allow_flat_trees=False)
