"""Arrays as `TensorProto`s, and back (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from savedmodel.schema import Proto
from xla_call_module.dtypes import dtype_from_name, dtype_from_tensorflow
from xla_call_module.errors import FormatError

__all__ = ["decode_tensor", "fill_tensor"]

# A constant in a graph is small; a splat of the same size in the file is not.
_MAX_CONSTANT_BYTES = 1 << 26
_MAX_PADDED = 1 << 12


def fill_tensor(tensor: Proto, array: np.ndarray[Any, Any]) -> None:
    """Make an empty `TensorProto` that of an array, of a dtype that TensorFlow has."""
    tensor.dtype = dtype_from_name(array.dtype.name, where="A constant").enum
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = np.asarray(array, order="C").tobytes()


def decode_tensor(tensor: Proto) -> np.ndarray[Any, Any]:
    """The array that a `TensorProto` is.

    Raises:
        FormatError: it is damaged, or too large for a constant of a graph.
        DtypeError: JAX has nothing like its elements.
    """
    dtype = dtype_from_tensorflow(tensor.dtype, where="A constant")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > _MAX_CONSTANT_BYTES:
        raise FormatError(f"A constant has the shape {shape}.")
    if tensor.tensor_content:
        if len(tensor.tensor_content) != count * dtype.itemsize:
            raise FormatError(
                f"A constant of {dtype.name}{list(shape)} has {len(tensor.tensor_content)} bytes."
            )
        return np.frombuffer(tensor.tensor_content, dtype.numpy).reshape(shape)
    if not count:
        return np.zeros(shape, dtype.numpy)
    values = _listed_values(tensor, dtype.numpy)
    if not 0 < values.size <= count or (values.size > 1 and count > _MAX_PADDED):
        raise FormatError(f"A constant of {dtype.name}{list(shape)} has {values.size} values.")
    if values.size == 1:
        return np.broadcast_to(values[0], shape)
    # The last value is that of all that are left out.
    return np.concatenate([values, values[-1:].repeat(count - values.size)]).reshape(shape)


def _listed_values(tensor: Proto, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The elements in the fields of a TensorProto for values of each kind."""
    if tensor.half_val:  # bits, also of bfloat16
        return np.array(tensor.half_val, np.uint16).view(dtype)
    if tensor.float8_val:
        return np.frombuffer(tensor.float8_val, np.uint8).view(dtype)
    for pairs, part in ((tensor.scomplex_val, np.float32), (tensor.dcomplex_val, np.float64)):
        if pairs:
            return np.array(pairs, part)[: len(pairs) // 2 * 2].view(dtype)
    fields = ("float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val",
              "uint64_val")  # fmt: skip
    values = [value for name in fields for value in getattr(tensor, name)]
    return np.array(values).astype(dtype)
