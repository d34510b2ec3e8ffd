"""`load`: make JAX functions of a SavedModel, without TensorFlow.

The modules behind it are imported by the call, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from bridge.loading.loaded_model import LoadedModel


@api_boundary
def load(
    path: str | os.PathLike[str],
    *,
    mesh: Mesh | None = None,
) -> LoadedModel:
    """Read the functions of a SavedModel as JAX functions.

    Nothing of the file is run, and a variable is read, and its checksum verified, at its first use.
    If another process replaces the folder, meanwhile or later, everything is still of one version;
    loading starts again if it has to.

    Args:
        path: the folder of a SavedModel whose signatures are calls of StableHLO modules: one that
            `bridge.save` wrote, also after TensorFlow has saved it again with other values.
        mesh: a mesh of devices to run on, such as `bridge.meshes.mesh_of(path)`. Parameters are
            arrays on it with the shardings of the export, and each device reads its own part of the
            file; arguments are moved to their shardings. If the axes have other sizes than at the
            export, arrays are split along the axes of the same names; a function that was exported
            for one device runs whole on each. Of `jax.shard_map` each device then computes several
            shards of the mesh of the export, or some the same: its sizes are in the module.

    Raises:
        FormatError: the file is damaged.
        StructureError: every signature computes something besides calls of JAX functions. If only
            some do, these are left out.
        OSError: a file cannot be read.
        ShardingError: a signature, when it is first used, cannot run on the mesh; the message shows
            the mesh and that of the export.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> params = {"w": jnp.arange(6.0).reshape(3, 2)}
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(lambda params, x: x @ params["w"]))(params, x)
        >>> saved = bridge.save(exported, "my_model", params=params)
        >>> model = bridge.load("my_model")
        >>> model(jnp.ones((1, 3)))
        Array([[6., 9.]], dtype=float32)
        >>> call = model.signatures["serving_default"].exported.call
        >>> jax.grad(lambda params: call(params, jnp.ones((1, 3))).sum())(model.params)
        {'w': Array([[1., 1.],
               [1., 1.],
               [1., 1.]], dtype=float32)}
    """
    from bridge.loading.loaded_model import LoadedModel
    from savedmodel.read import read

    return LoadedModel(read(path), mesh)
