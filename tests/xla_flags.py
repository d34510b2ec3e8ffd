"""The flags of XLA for processes of the tests; JAX and TensorFlow both read XLA_FLAGS."""

from __future__ import annotations

import os

import pytest

# Small programs that are compiled once each, and with which LLVM would spend most of the time.
UNOPTIMIZED = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"

# What says that a process is to call `set_unoptimized`, and the tests that it starts.
VARIABLE = "TESTS_UNOPTIMIZED"

# XLA writes the code of each fusion itself instead of through MLIR, which takes half as long, and
# changes the bits of NaNs in bfloat16 and float8. Where this flag is not known, as in JAX 0.12, the
# process ends.
_OF_TENSORFLOW = "--xla_cpu_use_fusion_emitters=false"


def with_xla_flags(*flags: str) -> str:
    """Return XLA_FLAGS with these flags, of which those of this process come last and hold."""
    return " ".join(filter(None, [*flags, os.environ.get("XLA_FLAGS")]))


def is_unoptimized() -> bool:
    """Return whether a process of the tests is told to call `set_unoptimized`."""
    return VARIABLE in os.environ


def set_unoptimized(*, of_tensorflow: bool = True) -> None:
    """Have JAX, and then TensorFlow, read the flags for programs that are compiled once each.

    Args:
        of_tensorflow: whether TensorFlow gets its own flag as well, with which XLA makes infinities
            of some gradients of float64.

    Each reads XLA_FLAGS once: JAX when it looks for devices, TensorFlow when it compiles the first
    program. What processes that this one starts get stays as it is.
    """
    import jax
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", with_xla_flags(UNOPTIMIZED))
        jax.devices()
        if of_tensorflow and tf.__version__.startswith("2.21."):
            patch.setenv("XLA_FLAGS", with_xla_flags(_OF_TENSORFLOW))
            tf.function(lambda: tf.constant(0), jit_compile=True)()
