"""The runtimes of this process: the platform of JAX, and whether JAX and TensorFlow can compute."""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import is_runtime_inherited
from xla_call_module.errors import InteropError, MissingDependencyError


def platform_of(device: Any) -> str:
    """Return the platform of a device; JAX itself says `gpu` of two of them."""
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def require_own_runtime(what: str) -> None:
    """Refuse to have JAX compute something for which it would wait for ever."""
    if is_runtime_inherited():
        raise InteropError(
            f"JAX cannot compute {what} here: this process was forked from one that had used JAX, "
            "and the threads that compute were not. To do: start it by spawn or forkserver, as "
            "with multiprocessing.get_context('spawn'); or compute it in the other process."
        )


def require_tensorflow(feature: str, *, instead: str = "") -> None:
    """Refuse a feature where TensorFlow cannot be imported."""
    try:
        import tensorflow  # noqa: F401 - the features import it themselves
    except ImportError as error:
        raise MissingDependencyError.of(
            feature, "TensorFlow", extra="tensorflow", instead=instead
        ) from error
