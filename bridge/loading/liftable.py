"""The sources that `bridge.to_jax` takes, as functions of JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import Mesh

from bridge.core.exported_file import MAX_EXPORTED_BYTES, parse_exported
from bridge.lifting.lifted_function import lift_call
from bridge.loading.lifted_exported import lift_exported, operand_of
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from bridge.loading.mlir_files import call_of_file, is_mlir, with_signature
from savedmodel.files.model_folder import read_file
from savedmodel.read import read
from xla_call_module.call import CallModule
from xla_call_module.errors import StructureError

__all__ = ["lift_source"]


def lift_source(model: Any, mesh: Mesh | None) -> Callable[..., Any]:
    """Return what was exported as a function of JAX; see `bridge.to_jax`."""
    if isinstance(model, str) and is_mlir(model.encode()):
        model = model.encode()
    if isinstance(model, bytes):
        model = _parse(model, Path("program"), "the bytes")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if path.is_file():
            model = _parse(read_file(path, limit=MAX_EXPORTED_BYTES), path, os.fspath(path))
        else:
            model = LoadedModel(read(path))
    if isinstance(model, LoadedModel):
        model = model.default
    if isinstance(model, LoadedSignature):
        model = model.exported
    if isinstance(model, export.Exported):
        return lift_exported(model, mesh)
    if isinstance(model, CallModule):
        return _lift_flat(with_signature(model), mesh)
    raise StructureError(
        f"Expected something that was exported, got a {type(model).__name__}. To do: pass a "
        "jax.export.Exported, StableHLO, the path of a file, or what bridge.load returned."
    )


def _parse(content: bytes, path: Path, place: str) -> export.Exported | CallModule:
    """Return the function in a file: a serialized `Exported`, or a module of StableHLO."""
    if is_mlir(content):
        return call_of_file(path, content, narrow=True)
    return parse_exported(content, place)


def _lift_flat(call: CallModule, mesh: Mesh | None) -> Callable[..., Any]:
    flat = lift_call(call, mesh)

    avals = [jax.ShapeDtypeStruct((), spec.dtype.numpy) for spec in call.args]

    def lifted(*arrays: Any, **named: Any) -> Any:
        if named or len(arrays) != len(avals):
            raise StructureError(
                f"{call.name} was called with {len(arrays)} positional and {len(named)} keyword "
                f"arguments; expected {len(avals)} positional ones. To do: pass arrays "
                f"({', '.join(map(str, call.args))})."
            )
        kept = [operand_of(arrays[index], avals[index], call.args[index]) for index in call.kept]
        results = flat(*kept)
        return results[0] if len(results) == 1 else results

    lifted.__name__ = lifted.__qualname__ = call.name
    return jax.jit(lifted)
