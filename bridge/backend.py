"""What JAX runs on, by the names that `jax.export` has for platforms."""

from __future__ import annotations

from typing import Any

__all__ = ["platform_of"]


def platform_of(device: Any) -> str:
    """The platform of a device; JAX itself says `gpu` of two of them.

    Args:
        device: one of `jax.devices()`.
    """
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
