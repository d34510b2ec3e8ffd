"""Shardy's operations, which become attributes of StableHLO when a module is written for all.

XLA has a pass that reads them back. It crashes on a text that is no attribute, so they are checked.

Source: xla/service/spmd/shardy/sdy_round_trip/import_shardy_attrs.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xla_call_module._jax import ir, sdy
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import FormatError
from xla_call_module.stablehlo.attributes import dictionary
from xla_call_module.stablehlo.modules import (
    first_line,
    open_module,
    serialize_module,
    uses_shardy,
    walk,
)
from xla_call_module.stablehlo.rewriting import run_passes

__all__ = [
    "MESHES",
    "SHARDING",
    "import_shardings",
    "import_shardings_into",
    "shardy_meshes",
    "shardy_texts",
]

# How JAX itself reads such a module (jax/_src/export/_export.py, `_call_exported_lowering`).
_IMPORT = "xla-sdy-round-trip-import-shardy-attrs"
_FRONTEND = "mhlo.frontend_attributes"
_SHARDY = "xla.sdy."
MESHES = "xla.sdy.meshes"
SHARDING = "xla.sdy.sharding"


def import_shardings(artifact: bytes) -> bytes:
    """Return the module with its shardings as JAX exports them, and not as StableHLO's attributes.

    JAX finds the mesh of the latter too late, where the `Exported` does not have the names of the
    axes (jax/_src/export/_export.py, `_call_exported_lowering`).

    Args:
        artifact: a portable artifact; without Shardy it stays as it is.

    Raises:
        FormatError: it is damaged.
    """
    with open_module(artifact) as module:
        if any(shardy_meshes(module)) or not uses_shardy(module):
            return artifact
        import_shardings_into(module)
        return serialize_module(module, read_artifact_version(artifact), mixed=True)


def import_shardings_into(module: Any) -> None:
    """Make Shardy's operations of the attributes of a parsed module, if it has them.

    Raises:
        FormatError: they are damaged.
    """
    if any(shardy_meshes(module)) or not uses_shardy(module):
        return
    try:
        for operation in walk(module):
            _check_operation(operation)
        run_passes(module, _IMPORT)
    except (ir.MLIRError, ValueError) as error:
        raise FormatError(
            f"The shardings in the module are damaged: {first_line(error)}. To do: write the file "
            "again."
        ) from error


def shardy_meshes(module: Any) -> Iterator[Any]:
    """Return the operations of a parsed module that declare a mesh."""
    return (op.operation for op in module.body.operations if op.operation.name == "sdy.mesh")


def _check_operation(operation: Any) -> None:
    attributes = operation.attributes
    written = _parse_texts(attributes)
    if MESHES in written:
        for mesh in dictionary(written[MESHES]).values():
            sdy.MeshAttr(mesh)
    if SHARDING in written:
        count = len(sdy.TensorShardingPerValueAttr(written[SHARDING]).shardings)
        if count != len(operation.results):
            raise ValueError(f"{count} shardings for {len(operation.results)} values.")
    for of_values in ("arg_attrs", "res_attrs"):
        if of_values in attributes:
            for value in map(_parse_texts, map(ir.DictAttr, attributes[of_values])):
                if SHARDING in value:
                    sdy.TensorShardingAttr(value[SHARDING])


def _parse_texts(attributes: Any) -> dict[str, Any]:
    texts = shardy_texts(attributes)
    if any("\\" in text or not text.isascii() for text in texts.values()):
        # Quoted twice, they end in other names or in a crash.
        raise ValueError("A name of an axis has letters besides those of ASCII, or quotes.")
    return {name: ir.Attribute.parse(text) for name, text in texts.items()}


def shardy_texts(attributes: Any) -> dict[str, str]:
    """Return the attributes of Shardy's that are written as texts in one of StableHLO's.

    Args:
        attributes: those of an operation, or of an argument or result.

    Raises:
        ValueError: one of them is no text.
    """
    if _FRONTEND not in attributes:
        return {}
    return {
        name: str(ir.StringAttr(text).value)
        for name, text in dictionary(attributes[_FRONTEND]).items()
        if name.startswith(_SHARDY)
    }
