"""Where JAX's own interface differs between the versions that are supported, as named gates."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from jax.extend import mlir
from jax.extend.mlir import ir

__all__ = ["dense_elements", "parse_artifact", "serialize_artifact"]


def parse_artifact(artifact: bytes) -> Any:
    """The module of a portable artifact, in the current MLIR context.

    Newer versions of `jax.extend.mlir.deserialize_portable_artifact` return the module, JAX 0.8 and
    older its text (jaxlib's mlir.cc). The gate can go when JAX 0.8 is no longer supported.
    """
    parsed: Any = mlir.deserialize_portable_artifact(artifact)
    return ir.Module.parse(parsed) if isinstance(parsed, str) else parsed


def serialize_artifact(module: Any, version: str) -> bytes:
    """The portable artifact of a module; Shardy's operations become StableHLO's attributes.

    JAX 0.8 and older take the bytecode, newer ones the module; the gate can go with the one above.
    """
    try:
        return bytes(mlir.serialize_portable_artifact(module, version, False))
    except TypeError:
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        return bytes(mlir.serialize_portable_artifact(bytecode.getvalue(), version, False))


def dense_elements(array: np.ndarray[Any, Any], element: Any) -> Any:
    """The elements of a constant, in the current MLIR context.

    With JAX 0.8 and older it takes eight bools as the bits of a byte, since then each as a byte
    (llvm/llvm-project, mlir/lib/Bindings/Python/IRAttributes.cpp). The gate can go with those.
    """
    make: Any = ir.DenseElementsAttr.get  # its stub knows no numpy arrays
    try:
        return make(array, type=element, shape=array.shape)
    except ValueError:
        packed = np.packbits(array, axis=None, bitorder="little")
        return make(packed, type=element, shape=array.shape)
