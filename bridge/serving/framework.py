"""TensorFlow, for that part of serving which is TensorFlow's own functions."""

from __future__ import annotations

from xla_call_module.errors import MissingDependencyError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError(
        "bridge.serving.compose puts TensorFlow's functions around a call, and TensorFlow is not "
        "installed. To do: pip install 'jax-tf-bridge[tensorflow]'."
    ) from error

__all__ = ["tf"]
