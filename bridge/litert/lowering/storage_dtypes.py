"""The dtypes that LiteRT computes with, and those that stand for others.

LiteRT adds, multiplies and compares float32, int32 and, for the most part, int64. Integers of fewer
bits are quantized numbers to most of its kernels, and unsigned ones have few. So a tensor of these
is int32 everywhere in a model: with the value where int32 has it, and with the same bits where it
has not (uint32). Small floats are float32, rounded after each operation. What a caller passes and
gets has its own dtype as far as LiteRT has it; complex numbers are float32 with one dimension more,
of real and imaginary part (`bridge.core_ops.decompositions.complex_pairs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridge.lifting.known_values import LiftedValue, as_array
from xla_call_module.dtypes import Array

# What LiteRT takes and returns.
_BOUNDARY = frozenset({
    "bool", "float16", "float32", "int16", "int32", "int64", "int8", "uint16", "uint32", "uint8",
})  # fmt: skip
# What has no storage dtype: there is nothing wider.
_WITHOUT = frozenset({"complex128", "float64"})


def integer_bits(dtype: np.dtype[Any]) -> int:
    """Return how many bits an integer has; 0 for another dtype."""
    name = dtype.name.lstrip("u")
    return int(name.removeprefix("int")) if name.startswith("int") else 0


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype that stands for another one in a model; None if there is none.

    That of complex numbers is the dtype of their parts.
    """
    if dtype.kind == "b":
        return dtype
    if dtype.name in _WITHOUT:
        return None
    if bits := integer_bits(dtype):
        return np.dtype(np.int32 if bits <= 32 else np.int64)
    return np.dtype(np.float32)


def boundary_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which a model takes or returns an array of another one."""
    if dtype.name in _BOUNDARY:
        return dtype
    if bits := integer_bits(dtype):
        kind = "uint" if dtype.name.startswith("u") else "int"
        return np.dtype(np.int64 if bits == 64 else f"{kind}8")
    return np.dtype(np.float32)


def boundary_shape(shape: Sequence[Any], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the shape in which a model takes or returns an array of a shape and a dtype."""
    return (*shape, 2) if dtype.kind == "c" else tuple(shape)


def at_boundary(array: Array) -> Array:
    """Return an array as a model takes or returns it."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(boundary_dtype(array.dtype))


def to_storage(value: LiftedValue) -> Any:
    """Return a value of a module as the model has it: constants in their storage dtype."""
    if not isinstance(value, np.ndarray):
        return as_array(value)
    target = storage_dtype(value.dtype)
    if target is None or target == value.dtype:
        return as_array(value)
    is_repeated = value.ndim and value.size and not any(value.strides)
    given = value[(0,) * value.ndim] if is_repeated else value
    stored = np.asarray(given).astype(np.int64 if target.kind == "i" else np.float64).astype(target)
    return jnp.broadcast_to(stored, value.shape) if is_repeated else stored
