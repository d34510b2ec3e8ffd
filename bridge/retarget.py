"""`retarget`: an `Exported`, and what it is differentiated by, for an older TensorFlow."""

from __future__ import annotations

import dataclasses

from jax import export

from bridge._jax import replace_vjp
from xla_call_module import retargeting
from xla_call_module.exported import from_exported

__all__ = ["retarget"]


def retarget(exported: export.Exported, tensorflow: str) -> export.Exported:
    """The same computation, and its VJPs of every order, as TensorFlow `tensorflow` reads it.

    `bridge.save(..., tensorflow=...)` does this by itself; this is for an `Exported` that goes
    another way, such as `jax.experimental.jax2tf` or a file of its own. It stays one that JAX
    calls, differentiates and serializes.

    Args:
        exported: the result of `jax.export.export(...)(...)` or of `jax.export.deserialize`.
        tensorflow: the oldest TensorFlow that must read it, such as `"2.16"`.

    Raises:
        VersionError: an operation has no form that this TensorFlow reads; the message names it,
            its source line, and the oldest TensorFlow that would do. What only a VJP contains is
            found when that VJP is asked for: by `vjp()`, by JAX's differentiation or by
            `serialize(vjp_order=...)`.
        InteropError: TensorFlow cannot run the computation at all.

    Example:
        >>> import bridge, jax
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> exported = bridge.retarget(jax.export.export(jax.jit(jax.lax.erf))(spec), "2.16")
        >>> exported.calling_convention_version, exported.vjp().calling_convention_version
        (9, 9)
    """
    call = retargeting.retarget(from_exported(exported, allow_flat_trees=True), tensorflow)
    changed = dataclasses.replace(
        exported,
        mlir_module_serialized=call.module,
        calling_convention_version=call.version,
    )
    if not exported.has_vjp():
        return changed
    return replace_vjp(changed, lambda: retarget(exported.vjp(), tensorflow))
