"""The flags of XLA for processes of the tests; JAX and TensorFlow both read XLA_FLAGS."""

from __future__ import annotations

import os

__all__ = ["UNOPTIMIZED", "with_xla_flags"]

# Small programs that are compiled once each, and with which LLVM would spend most of the time.
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


def with_xla_flags(*flags: str) -> str:
    """Return XLA_FLAGS with these flags, of which those of this process come last and hold."""
    return " ".join(filter(None, [*flags, os.environ.get("XLA_FLAGS")]))
