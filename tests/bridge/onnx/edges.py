"""Arrays of the numbers at which operations differ."""

from __future__ import annotations

import ml_dtypes
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = INTEGERS + FLOATS

_FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.75, -7.25, 1e-3, -1e-3, 20.0, -20.0,
           100.0, -100.0, np.inf, -np.inf, np.nan]  # fmt: skip


def edges(name):
    """Numbers of a dtype, with its least and its greatest, zeros, infinities and NaN."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if name == "bool":
        return np.array([False, True])
    if "int" not in name:
        return np.array(_FLOATS).astype(dtype)
    bounds = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 63, 100, bounds.max - 1, bounds.max]
    if bounds.bits == 64:  # of which the lower half is another number
        numbers += [2**31, 2**32 - 1, 2**32]
    if bounds.min < 0:
        numbers += [-1, -2, -3, -7, -100, bounds.min, bounds.min + 1]
    return np.array(numbers, dtype)


def pairs(name):
    """All pairs of these numbers, as two arrays."""
    left, right = np.meshgrid(edges(name), edges(name), indexing="ij")
    return left.reshape(-1), right.reshape(-1)
