"""The flags of XLA for processes of the tests; JAX and TensorFlow both read XLA_FLAGS."""

from __future__ import annotations

import os

__all__ = ["UNOPTIMIZED", "set_unoptimized", "with_xla_flags"]

# Small programs that are compiled once each, and with which LLVM would spend most of the time.
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"

# XLA writes the code of each fusion itself instead of through MLIR, which takes half as long. Where
# this flag is not known, as in JAX 0.12, the process ends.
_OF_TENSORFLOW = "--xla_cpu_use_fusion_emitters=false"


def with_xla_flags(*flags: str) -> str:
    """Return XLA_FLAGS with these flags, of which those of this process come last and hold."""
    return " ".join(filter(None, [*flags, os.environ.get("XLA_FLAGS")]))


def set_unoptimized() -> None:
    """Set the flags of a process that starts no other one: JAX's, and then those of TensorFlow.

    Each reads them once, when it first needs them.
    """
    import jax
    import tensorflow as tf

    os.environ["XLA_FLAGS"] = with_xla_flags(UNOPTIMIZED)
    jax.devices()
    if tf.__version__.startswith("2.21."):
        os.environ["XLA_FLAGS"] = with_xla_flags(_OF_TENSORFLOW)
