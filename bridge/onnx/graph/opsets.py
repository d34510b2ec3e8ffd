"""Versions of ONNX's operations: those that are known, and what a newer one is needed for."""

from __future__ import annotations

__all__ = ["FIRST_WITH_BITS", "FIRST_WITH_FLOAT8", "OPSETS", "USUAL", "NewerOpset"]

# From the first that has integer bit operations, and axes of reductions as inputs, to the last that
# this package was tested with. ONNX Runtime 1.31 reads all of them.
OPSETS = range(18, 27)
# What most runtimes know.
USUAL = 21
# The first with BitCast. Before it nothing tells the sign of a NaN.
FIRST_WITH_BITS = 26
# The first with floats of 8 bits.
FIRST_WITH_FLOAT8 = 19


class NewerOpset(Exception):  # noqa: N818 - it is no error, and no caller sees it
    """The model is to be made anew for `FIRST_WITH_BITS`."""
