"""Errors of the bridge that are also those that TensorFlow's op raises for the same mistake.

What the op finds while it runs is found here before; a program that expects TensorFlow's error
catches this one.
"""

from __future__ import annotations

import tensorflow as tf

from xla_call_module.errors import PlatformError, StructureError

__all__ = ["ForeignPlatformError", "ShapeMismatchError"]


class ForeignPlatformError(PlatformError, tf.errors.NotFoundError):  # type: ignore[misc]
    """A module was not exported for where it would run."""

    def __init__(self, message: str) -> None:
        """The error without an operation, because none was run."""
        tf.errors.NotFoundError.__init__(self, None, None, message)


class ShapeMismatchError(StructureError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """The shapes of the arguments contradict the polymorphic shapes."""

    def __init__(self, message: str) -> None:
        """The error without an operation, because none was run."""
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)
