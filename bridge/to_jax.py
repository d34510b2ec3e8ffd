"""`to_jax`: make a function of JAX, with every transformation, of what was exported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from jax import export
    from jax.sharding import Mesh

    from bridge.loading.loaded import LoadedSignature
    from bridge.loading.loaded_model import LoadedModel
    from xla_call_module.call import CallModule

    Liftable = (
        export.Exported
        | CallModule
        | LoadedModel
        | LoadedSignature
        | bytes
        | str
        | os.PathLike[str]
    )


@api_boundary
def to_jax(model: Liftable, *, mesh: Mesh | None = None) -> Callable[..., Any]:
    """Return an exported function as a JAX function that every transformation of JAX takes.

    `Exported.call` runs a module as it is. Here each of its operations becomes the primitive of JAX
    that is lowered to it, so that `jax.vmap`, `jax.jvp`, `jax.linearize`, `jax.hessian` and
    gradients of every order work, and XLA optimizes it together with what is around it. Its
    derivatives are those of the operations: a `jax.custom_vjp` or `jax.custom_jvp` of the author is
    not in the module, but in the VJPs that were saved with it, which `bridge.load` uses.

    A function that was exported for static shapes stays static. Symbolic dimensions take every
    size that they were exported for, and are JAX's own where the function is exported again.

    Args:
        model: an `Exported`, or its serialized bytes; what `bridge.load` returned, or one of its
            signatures; the path of a SavedModel, of a serialized `Exported`, or of StableHLO as a
            text or as a portable artifact, or one of these as it is; or a
            `xla_call_module.CallModule`.
        mesh: the mesh of devices that shardings and `jax.shard_map` inside are for. It has the axes
            of the mesh of the export, of any sizes; `jax.shard_map` stays the computation of one
            shard of the mesh of the export, of which a device may compute several. By default the
            mesh that `jax.set_mesh` has set, or else that of the export, on the devices of the
            arguments.

    Returns:
        The function, under `jax.jit`. It takes and returns the pytrees that the function took and
        returned when it was exported; for a SavedModel its first argument is the parameters, if it
        has any. StableHLO alone takes and returns arrays, several results as a tuple.

    Raises:
        UnsupportedError: an operation that JAX cannot express, with its source line; it is raised
            when the function is traced.
        StructureError: the arguments are not those that it was exported for, when it is traced.
        ShardingError: the mesh lacks axes, or none is given where several devices are needed.
        FormatError: the file is damaged.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> exported = jax.export.export(jax.jit(lambda x: jnp.sin(x) * x))(jnp.ones(()))
        >>> f = bridge.to_jax(exported)
        >>> jax.vmap(jax.grad(jax.grad(f)))(jnp.array([0.0, 1.0])).round(2)
        Array([2.  , 0.24], dtype=float32)
    """
    from jax import export

    from bridge.exporting.source import default_of, open_model
    from bridge.loading.lifted_exported import lift_exported, lift_module
    from bridge.loading.loaded import LoadedSignature
    from bridge.loading.loaded_model import LoadedModel
    from xla_call_module.call import CallModule
    from xla_call_module.errors import StructureError
    from xla_call_module.mlir_files import call_of_file

    opened = open_model(model, read_mlir=functools.partial(call_of_file, narrow=True))
    if isinstance(opened, LoadedModel):
        opened = default_of(opened)
    if isinstance(opened, LoadedSignature):
        opened = opened.exported
    if isinstance(opened, export.Exported):
        return lift_exported(opened, mesh)
    if isinstance(opened, CallModule):
        return lift_module(opened, mesh)
    raise StructureError(
        f"Expected an exported function, got a {type(model).__name__}. To do: pass a "
        "jax.export.Exported, StableHLO, the path of a file, or what bridge.load returned."
    )
