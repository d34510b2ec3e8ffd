"""Errors of the bridge that are also those that TensorFlow's op raises for the same mistake.

What the op finds while it runs is found here before; a program that expects TensorFlow's error
catches this one. They are made of a node, an operation and a message, as TensorFlow's are, so that
AutoGraph raises them as what they are; both are None, because none was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from xla_call_module.errors import PlatformError, StructureError, shown_as_base


@shown_as_base
class ForeignPlatformError(PlatformError, tf.errors.NotFoundError):  # type: ignore[misc]
    """A module was not exported for where it would run."""

    if not TYPE_CHECKING:
        __init__ = tf.errors.NotFoundError.__init__


@shown_as_base
class ShapeMismatchError(StructureError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """The shapes of the arguments contradict the polymorphic shapes."""

    if not TYPE_CHECKING:
        __init__ = tf.errors.InvalidArgumentError.__init__
