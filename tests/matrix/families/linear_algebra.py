"""`jax.numpy.linalg` and `jax.scipy.linalg`."""

from __future__ import annotations

from tests.matrix.case import Case

__all__ = ["CASES"]

CASES: tuple[Case, ...] = ()
