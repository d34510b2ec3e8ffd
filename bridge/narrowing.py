"""The dtypes that JAX has as it is set: without `jax_enable_x64` none of 64 bits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

__all__ = ["is_narrowed", "narrow_array", "narrow_dtype"]


def narrow_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of the array that JAX makes of one with this dtype."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def is_narrowed(dtype: Any) -> bool:
    """Whether JAX has the values of this dtype in another one only."""
    return bool(narrow_dtype(dtype) != dtype)


def narrow_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with the dtype that JAX would give it; itself where it has that."""
    return array.astype(narrow_dtype(array.dtype), copy=False)
