"""Differences between the versions of JAX that the tests run with."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_OLD = jax.__version_info__ < (0, 9, 1)
_NEW = jax.__version_info__ >= (0, 12)

# The oldest TensorFlow that reads `erf` as it is. JAX 0.9.0 calls one of MLIR's own operations,
# which TensorFlow knows from 2.16 on; newer ones make a composite, which it knows from 2.18 on,
# and, with symbolic shapes, nothing special.
ERF = "2.16" if _OLD else "2.18"
ERF_OF_SYMBOLS = "2.16" if _OLD else "2.14"
# Whether a stable sort reverses equal keys where its comparison holds of them (`x <= y`), which
# StableHLO leaves open.
REVERSES_EQUAL_KEYS = not _NEW
# The error of a question about symbolic sizes, which was in `jax.core`.
_module: Any = jax.errors if hasattr(jax.errors, "InconclusiveDimensionOperation") else jax.core
INCONCLUSIVE: type[Exception] = _module.InconclusiveDimensionOperation


def bits_of(array: np.ndarray[Any, Any]) -> bytes:
    """The bits of an array, of which JAX and TensorFlow are to agree.

    XLA chooses between two values of these dtypes by way of float32, which keeps no payloads of
    NaNs. The one in JAX 0.12 does not any more; that in TensorFlow 2.21 does.
    """
    if _NEW and array.dtype.name in ("bfloat16", "float8_e5m2"):
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()
