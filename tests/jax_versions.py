"""Differences between the versions of JAX that the tests run with."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from xla_call_module._jax import ir

__all__ = [
    "ERF",
    "ERF_OF_SYMBOLS",
    "GRADIENTS_FOR_GSPMD",
    "INCONCLUSIVE",
    "KEEPS_NAMES_OF_AXES",
    "MOVES_OPERATIONS",
    "READS_GOLDEN_FILES",
    "REVERSES_EQUAL_KEYS",
    "ROUNDING_OF_HALVES",
    "bits_of",
]

_OLD = jax.__version_info__ < (0, 9)
_NEW = jax.__version_info__ >= (0, 12)

# The oldest TensorFlow that reads `erf` as it is. JAX 0.8 and older call one of MLIR's own
# operations, which TensorFlow knows from 2.16 on; newer ones make a composite, which it knows from
# 2.18 on, and, with symbolic shapes, nothing special.
ERF = "2.16" if _OLD else "2.18"
ERF_OF_SYMBOLS = "2.16" if _OLD else "2.14"
# Files with modules of a newer JAX, which the StableHLO of an older one does not read.
READS_GOLDEN_FILES = not _OLD
# What a sum of a few numbers near 1 may be off by where every partial sum is rounded to float16, as
# the XLA of JAX 0.7 does on CPU; later ones add in float32.
ROUNDING_OF_HALVES = 2e-3 if jax.__version_info__ < (0, 8) else 0.0
# Whether a stable sort reverses equal keys where its comparison holds of them (`x <= y`), which
# StableHLO leaves open.
REVERSES_EQUAL_KEYS = not _NEW
# Whether a file has the names of its mesh's axes where its module has none, which is so on one
# device and with symbolic sizes: its description has them since JAX 0.9.
KEEPS_NAMES_OF_AXES = not _OLD
# Whether an operation of a parsed module can have another location; in JAX 0.7 it cannot.
MOVES_OPERATIONS = ir.Operation.location.fset is not None
# Whether what is exported for GSPMD on a mesh without devices has gradients.
GRADIENTS_FOR_GSPMD = not _OLD
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


# XLA of JAX 0.7 converts integers of 2 bits wrongly, and transposes those of 4 bits wrongly where a
# program has others of them.
COMPUTES_NARROW_INTEGERS = jax.__version_info__ >= (0, 8)
# The reference interpreter of jaxlib 0.7 ends the process at a triangular solve.
INTERPRETS_SOLVES = jax.__version_info__ >= (0, 8)
