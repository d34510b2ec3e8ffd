"""Shardy's operations, which become attributes of StableHLO when a module is written for all.

XLA has a pass that reads them back. It crashes on a text that is no attribute, so they are checked.

Source: xla/service/spmd/shardy/sdy_round_trip/import_shardy_attrs.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.extend.mlir.passmanager import PassManager

from xla_call_module.call import read_artifact_version
from xla_call_module.errors import FormatError
from xla_call_module.stablehlo.modules import (
    first_line,
    open_module,
    serialize_module,
    uses_shardy,
    walk,
)

__all__ = ["import_shardings", "import_shardings_into", "shardy_meshes"]

# How JAX itself reads such a module (jax/_src/export/_export.py, `_call_exported_lowering`).
_IMPORT = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"
_FRONTEND = "mhlo.frontend_attributes"
_SHARDY = "xla.sdy."
_MESHES = "xla.sdy.meshes"
_SHARDING = "xla.sdy.sharding"


def import_shardings(artifact: bytes) -> bytes:
    """The same module with its shardings as JAX exports them, and not as StableHLO's attributes.

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
        PassManager.parse(_IMPORT).run(module.operation)
    except (ir.MLIRError, ValueError) as error:
        raise FormatError(
            f"The shardings in the module are damaged: {first_line(error)}. To do: write the file "
            "again."
        ) from error


def shardy_meshes(module: Any) -> Iterator[Any]:
    """The operations of a parsed module that declare a mesh."""
    return (op.operation for op in module.body.operations if op.operation.name == "sdy.mesh")


def _check_operation(operation: Any) -> None:
    attributes = operation.attributes
    for name, value in _texts(attributes):
        if name == _MESHES:
            for mesh in _named(ir.DictAttr(value)):
                sdy.MeshAttr(mesh.attr)
        elif name == _SHARDING:
            count = len(sdy.TensorShardingPerValueAttr(value).shardings)
            if count != len(operation.results):
                raise ValueError(f"{count} shardings for {len(operation.results)} values.")
    for of_values in ("arg_attrs", "res_attrs"):
        if of_values in attributes:
            for value in ir.ArrayAttr(attributes[of_values]):
                _check_value(ir.DictAttr(value))


def _check_value(attributes: Any) -> None:
    """The attributes of an argument or result of a function."""
    for name, value in _texts(attributes):
        if name == _SHARDING:
            sdy.TensorShardingAttr(value)


def _texts(attributes: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of Shardy's that are written as texts in one of StableHLO's."""
    if _FRONTEND not in attributes:
        return
    for named in _named(ir.DictAttr(attributes[_FRONTEND])):
        if not named.name.startswith(_SHARDY):
            continue
        text = str(ir.StringAttr(named.attr).value)
        if "\\" in text or not text.isascii():
            # Quoted twice, they end in other names or in a crash.
            raise ValueError("A name of an axis has letters besides those of ASCII, or quotes.")
        yield named.name, ir.Attribute.parse(text)


def _named(attributes: Any) -> Iterator[Any]:
    # The stub of its class does not know that it is iterable.
    return iter(attributes)
