"""Arrays as `TensorProto`s, and back (tensorflow/core/framework/tensor.proto)."""

from __future__ import annotations

import math

import numpy as np

from savedmodel.protos.schema import Proto
from xla_call_module.dtypes import Array, DType, dtype_from_name, dtype_from_tensorflow
from xla_call_module.errors import FormatError

# A constant in a graph is small; a splat of the same size in the file is not.
_MAX_CONSTANT_BYTES = 1 << 26
_MAX_PADDED = 1 << 12
# Where the elements are that are no raw bytes; those of the other dtypes are in `int_val`, or
# `float8_val`.
_FIELDS = {
    "bfloat16": "half_val", "bool": "bool_val", "complex128": "dcomplex_val",
    "complex64": "scomplex_val", "float16": "half_val", "float32": "float_val",
    "float64": "double_val", "int64": "int64_val", "uint32": "uint32_val", "uint64": "uint64_val",
}  # fmt: skip
# The kinds of NumPy's arrays of texts, and the number of TensorFlow's dtype.
_TEXTS, _STRING = "OU", 7
_PARTS = {"dcomplex_val": np.float64, "scomplex_val": np.float32}


def fill_tensor(tensor: Proto, array: Array) -> None:
    """Make an empty `TensorProto` that of an array, of a dtype that TensorFlow has, or of texts."""
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.dtype.kind in _TEXTS:
        tensor.dtype = _STRING
        tensor.string_val.extend(str(text).encode() for text in array.flat)
        return
    tensor.dtype = dtype_from_name(array.dtype.name, where="A constant").enum
    tensor.tensor_content = np.asarray(array, order="C").tobytes()


def value_field(dtype: DType) -> str:
    """Return the field of a TensorProto where TensorFlow looks for elements of a dtype."""
    return _FIELDS.get(dtype.name, "float8_val" if "float8" in dtype.name else "int_val")


def decode_tensor(tensor: Proto) -> Array:
    """Return the array that a `TensorProto` is."""
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.dtype == _STRING:
        return _decode_texts(tensor, shape)
    dtype = dtype_from_tensorflow(tensor.dtype, where="A constant")
    count = math.prod(shape)
    # What is in the file as a whole is no larger than it says.
    is_large = not tensor.tensor_content and count * dtype.itemsize > _MAX_CONSTANT_BYTES
    if min(shape, default=0) < 0 or is_large:
        raise FormatError(f"A constant has the shape {shape}.")
    if tensor.tensor_content:
        if len(tensor.tensor_content) != count * dtype.itemsize:
            raise FormatError(
                f"A constant of {dtype.name}{list(shape)} has {len(tensor.tensor_content)} bytes."
            )
        return np.frombuffer(tensor.tensor_content, dtype.numpy).reshape(shape)
    if not count:
        return np.zeros(shape, dtype.numpy)
    values = _listed_values(tensor, dtype)
    if not 0 < values.size <= count or (values.size > 1 and count > _MAX_PADDED):
        raise FormatError(f"A constant of {dtype.name}{list(shape)} has {values.size} values.")
    if values.size == 1:
        return np.broadcast_to(values[0], shape)
    # The last value is that of all that are left out.
    return np.concatenate([values, values[-1:].repeat(count - values.size)]).reshape(shape)


def _decode_texts(tensor: Proto, shape: tuple[int, ...]) -> Array:
    texts = [text.decode("utf-8", "replace") for text in tensor.string_val]
    if len(texts) != math.prod(shape):
        raise FormatError(f"A constant of texts, {list(shape)}, has {len(texts)} of them.")
    return np.array(texts, object).reshape(shape)


def _listed_values(tensor: Proto, dtype: DType) -> Array:
    """Return the elements that a TensorProto lists one by one."""
    field = value_field(dtype)
    if field == "float8_val":
        return np.frombuffer(tensor.float8_val, np.uint8).view(dtype.numpy)
    values = list(getattr(tensor, field))
    if field == "half_val":  # bits
        return np.array(values, np.int64).astype(np.uint16).view(dtype.numpy)
    if field in _PARTS:
        return np.array(values, _PARTS[field])[: len(values) // 2 * 2].view(dtype.numpy)
    return np.array(values).astype(dtype.numpy)
