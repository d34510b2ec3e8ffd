"""JAX's 64-bit mode as a context, under the name that each supported JAX has for it."""

from __future__ import annotations

try:
    from jax import enable_x64
except ImportError:  # JAX 0.7
    from jax.experimental import enable_x64

__all__ = ["enable_x64"]
