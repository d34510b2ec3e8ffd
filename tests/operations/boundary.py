"""What a LiteRT model returns, in the dtypes of the program."""

from __future__ import annotations

from typing import Any

import numpy as np

from xla_call_module.dtypes import Array


def from_boundary(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return what a model takes or returns in the dtype that it has in the module."""
    if dtype.kind != "c":
        return array.astype(dtype)
    numbers = np.empty(array.shape[:-1], dtype)  # 1j * infinity has a part that is NaN
    numbers.real, numbers.imag = array[..., 0], array[..., 1]
    return numbers
