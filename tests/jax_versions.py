"""What differs between the versions of JAX that the tests run with."""

from __future__ import annotations

import jax

__all__ = ["ERF", "ERF_OF_SYMBOLS", "READS_GOLDEN_FILES"]

_OLD = jax.__version_info__ < (0, 9)

# The oldest TensorFlow that reads `erf` as it is. JAX 0.8 and older call one of MLIR's own
# operations, which TensorFlow knows from 2.16 on; newer ones make a composite, which it knows from
# 2.18 on, and, with symbolic shapes, nothing special.
ERF = "2.16" if _OLD else "2.18"
ERF_OF_SYMBOLS = "2.16" if _OLD else "2.14"
# Files with modules of a newer JAX, which the StableHLO of an older one does not read.
READS_GOLDEN_FILES = not _OLD
