"""Tensors that a bundle stores in parts, as TensorFlow's partitioned variables are.

The entry of such a tensor lists its slices and has no bytes. Each slice has an entry of its own,
whose key is the tensor's key and the slice's extents in an encoding that keeps their order
(`EncodeTensorNameSlice` in tensorflow/core/util/saved_tensor_slice_util.cc, by the rules of
tensorflow/core/lib/strings/ordered_code.cc).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from xla_call_module.dtypes import DType

Slice = tuple[tuple[int, int | None], ...]
"""The start and length of a part in each dimension; None is all of a dimension."""

# TensorFlow cuts a variable once for each parameter server or device. Every pair is compared.
MAX_SLICES = 1 << 13
_ESCAPES = {b"\0": b"\0\xff", b"\xff": b"\xff\0"}
_COMPARED_AT_ONCE = 1 << 8
# `BundleReader::GetSliceValue` in tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
_READABLE_IN_SLICES = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8",
    "bfloat16", "float32", "float64", "complex64", "complex128",
})  # fmt: skip


def is_readable_in_slices(dtype: DType) -> bool:
    """Return whether TensorFlow puts slices of this dtype together; it refuses those of others."""
    return dtype.name in _READABLE_IN_SLICES


def slice_key(key: str, part: Slice) -> str:
    r"""Return the key of the entry that has a part's bytes.

    >>> slice_key("w", ((0, 2), (0, None))).encode("utf-8", "surrogateescape")
    b'\x00w\x00\x01\x01\x02\x80\x82\x80\x7f'
    """
    name = key.encode("utf-8", "surrogateescape")
    escaped = re.sub(b"[\0\xff]", lambda match: _ESCAPES[match[0]], name)
    encoded = b"\0" + escaped + b"\0\1"
    encoded += b"\1" + bytes([len(part)])
    for start, length in part:
        encoded += _encode_signed(start) + _encode_signed(-1 if length is None else length)
    return encoded.decode("utf-8", "surrogateescape")


def show_key(key: str) -> str:
    r"""Return a key as messages have it; the encoding of a slice as what it is a slice of.

    >>> show_key(slice_key("w", ((0, 2), (0, None)))), show_key("w")
    ("a slice of 'w'", "'w'")
    """
    if not key.startswith("\0"):
        return repr(key)
    name = key[1:].partition("\0\1")[0].encode("utf-8", "surrogateescape")
    for plain, escaped in _ESCAPES.items():
        name = name.replace(escaped, plain)
    return f"a slice of {name.decode('utf-8', 'surrogateescape')!r}"


def _encode_signed(value: int) -> bytes:
    """Return the sign bit, as many equal bits as bytes follow, one that differs, and the value."""
    positive = value >= 0
    size = (value if positive else ~value).bit_length() // 7 + 1
    prefix = (1 << size) - 1 << 7 * size
    bits = prefix | value if positive else ~prefix & value
    return (bits & (1 << 8 * size) - 1).to_bytes(size, "big")


def extents(part: Slice, shape: Sequence[int]) -> tuple[slice, ...]:
    """Return a part as slices of the whole array."""
    sizes = zip(part, shape, strict=True)
    return tuple(slice(start, size if n is None else start + n) for (start, n), size in sizes)


def shape_of_slice(part: Slice, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a part of a tensor of that shape."""
    return tuple(extent.stop - extent.start for extent in extents(part, shape))


def flaw_of_slices(parts: Sequence[Slice], shape: Sequence[int]) -> str:
    """Return why the parts do not make up the whole, each element once; or nothing."""
    if len(parts) > MAX_SLICES:
        return f"{len(parts)} slices, more than any writer makes"
    if not all(is_within(part, shape) for part in parts):
        return f"slices that are not within shape {tuple(shape)}"
    elements = [math.prod(shape_of_slice(part, shape)) for part in parts]
    if sum(elements) != math.prod(shape):
        return f"slices with {sum(elements)} elements for shape {tuple(shape)}"
    filled = [part for part, count in zip(parts, elements, strict=True) if count]
    return "slices that overlap" if _overlap(filled, shape) else ""


def is_within(part: Slice, shape: Sequence[int]) -> bool:
    """Return whether a part is one of a tensor of that shape."""
    return len(part) == len(shape) and all(
        start == 0 if length is None else 0 <= start <= start + length <= size
        for (start, length), size in zip(part, shape, strict=True)
    )


def _overlap(parts: Sequence[Slice], shape: Sequence[int]) -> bool:
    """Return whether two parts share an element: each begins before the other ends everywhere."""
    if len(parts) < 2:
        return False
    bounds = [[(e.start, e.stop) for e in extents(part, shape)] for part in parts]
    starts, stops = np.moveaxis(np.array(bounds, np.int64), -1, 0)
    for first in range(0, len(parts), _COMPARED_AT_ONCE):
        some = slice(first, first + _COMPARED_AT_ONCE)
        shared = (starts[some, None] < stops) & (starts < stops[some, None])
        # Each shares all of itself with itself.
        if np.count_nonzero(np.all(shared, axis=-1)) > len(starts[some]):
            return True
    return False
