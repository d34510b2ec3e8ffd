"""The StableHLO of a signature as text."""

from __future__ import annotations

import os

from bridge.loading.signature_calls import call_of_order, calls_of
from savedmodel.read import read
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.modules import open_module

__all__ = ["module_text"]

# Constants of more elements are shown by their type alone.
_MOST_ELEMENTS = 64


def module_text(path: str | os.PathLike[str], *, signature: str = "", order: int = 0) -> str:
    """The module of a signature, or of one of its gradients, as MLIR prints it.

    Of a file of another program that has several calls these are all their modules.

    Args:
        path: the folder of a SavedModel.
        signature: its key; empty for the default one.
        order: which gradient; 0 for the function.

    Raises:
        StructureError: there is no such signature or gradient.
        FormatError: the file is damaged.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> "stablehlo.sine" in module_text("my_model")
        True
    """
    model = read(path)
    found = {candidate.key: candidate for candidate in model.signatures}
    key = signature or model.default.key
    if key not in found:
        raise StructureError(f"{path} has no signature {key!r}, only {', '.join(sorted(found))}.")
    calls = [call_of_order(found[key], chain, order) for chain in calls_of(found[key])]
    return "\n".join(_print(call.module) for call in calls)


def _print(artifact: bytes) -> str:
    with open_module(artifact) as module:
        return str(module.operation.get_asm(large_elements_limit=_MOST_ELEMENTS))
