"""The dtypes that JAX has as it is set: without `jax_enable_x64` none of 64 bits.

JAX narrows arrays without a word, and integers that 32 bits do not hold become others. Here they
are refused, as are finite numbers that would be infinite; that others are rounded is JAX's way.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax import tree_util

from xla_call_module.dtypes import WIDE, Array
from xla_call_module.errors import DtypeError
from xla_call_module.tracebacks import warn

# The number of elements that are checked at a time.
_PIECE = 1 << 20


def x64_if_needed(dtypes: Iterable[Any]) -> AbstractContextManager[Any]:
    """Return a context in which JAX has dtypes of 64 bits, if any of these dtypes or names is."""
    return jax.enable_x64(True) if any(str(dtype) in WIDE for dtype in dtypes) else nullcontext()


def narrow_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the array that JAX makes of one with this dtype."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def is_narrowed(dtype: Any) -> bool:
    """Return whether JAX has the values of this dtype in another one only."""
    return bool(narrow_dtype(dtype) != dtype)


def narrow_array(array: Array, where: str) -> Array:
    """Return the array with the dtype that JAX would give it; itself where it has that."""
    check_narrowing(array, where)
    return array.astype(narrow_dtype(array.dtype), copy=False)


def warn_of_narrowing(params: Any) -> None:
    """Warn of numpy arrays with floating-point numbers that JAX rounds to 32 bits."""
    leaves = tree_util.tree_flatten_with_path(params)[0]
    rounded = [
        f"params{tree_util.keystr(path)}"
        for path, leaf in leaves
        if isinstance(leaf, np.ndarray) and _is_rounded(leaf)
    ]
    if rounded:
        more = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        warn(
            f"{rounded[0]}{more} of 64 bits become numbers of 32 bits, since JAX has no others "
            "while jax_enable_x64 is off. To do: cast them, or "
            "jax.config.update('jax_enable_x64', True) before anything else."
        )


def check_narrowing(array: Array, where: str) -> None:
    """Refuse an array of 64 bits with a value that JAX's narrower dtype does not have."""
    if array.dtype.kind not in "iufc" or not is_narrowed(array.dtype):
        return
    narrow = narrow_dtype(array.dtype)
    for piece in _pieces(array):
        changed = _is_changed(piece, narrow)
        if changed.any():
            raise DtypeError(
                f"{where} is {array.dtype.name} with the value {piece[changed][0]}, which "
                f"{narrow.name} does not hold, and JAX has no 64 bits while jax_enable_x64 is off. "
                "To do: jax.config.update('jax_enable_x64', True) before anything else, or pass "
                f"{narrow.name}."
            )


def _pieces(array: Array) -> Any:
    return np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], buffersize=_PIECE)


def _is_rounded(array: Array) -> bool:
    """Return whether JAX's narrower dtype has another number in the place of a finite one."""
    if array.dtype.kind not in "fc" or not is_narrowed(array.dtype):
        return False
    narrow = narrow_dtype(array.dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return any(
            bool(np.any((piece.astype(narrow) != piece) & np.isfinite(piece.astype(narrow))))
            for piece in _pieces(array)
        )


def _is_changed(array: Array, narrow: np.dtype[Any]) -> Array:
    """Return for each number whether a narrower dtype changes it by more than rounding."""
    if array.dtype.kind in "iu":
        limits = np.iinfo(narrow)
        return np.asarray((array < limits.min) | (array > limits.max))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(array) & np.isinf(array.astype(narrow)))
