"""Errors of the bridge: one base class, one subclass for each remedy."""

from __future__ import annotations

__all__ = [
    "DtypeError",
    "FormatError",
    "InteropError",
    "MissingDependencyError",
    "PlatformError",
    "ShardingError",
    "StructureError",
    "VersionError",
]


class InteropError(Exception):
    """Something cannot cross between JAX and TensorFlow.

    The message says what was found, what was expected, where, and what to do.
    """


class DtypeError(InteropError, TypeError):
    """A dtype has no counterpart on the other side: cast the value."""


class StructureError(InteropError, ValueError):
    """Arity, pytree, shape or name do not fit: change the call or the specification."""


class PlatformError(InteropError, ValueError):
    """A platform is unknown or was not exported for: export again with `platforms=`."""


class VersionError(InteropError, ValueError):
    """The consumer is too old for the computation: take a newer TensorFlow, or export less."""


class ShardingError(InteropError, ValueError):
    """The computation needs several devices where one is at hand: export without shardings."""


class FormatError(InteropError, ValueError):
    """A file or a message is damaged, or is not what it is said to be: write it again."""


class MissingDependencyError(InteropError, ImportError):
    """An optional package is not installed: install the extra that the message names."""
