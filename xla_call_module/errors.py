"""Errors of the bridge: one base class, one subclass for each remedy."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

__all__ = [
    "ArgumentError",
    "DtypeError",
    "FormatError",
    "InteropError",
    "LoweringError",
    "MissingDependencyError",
    "PlatformError",
    "ShardingError",
    "StructureError",
    "UnsupportedError",
    "VersionError",
    "page_of",
    "private_name",
    "quote",
    "refusing_damage",
    "shown_as_base",
]

_Class = TypeVar("_Class", bound=type["InteropError"])


# The page with a section for each class; a wheel does not have it.
_PAGE = "docs/reference/troubleshooting.md"


class InteropError(Exception):
    """Something cannot cross between JAX and TensorFlow.

    The message says what was found, what was expected, where, and what to do.
    """

    __module__ = "bridge"

    # AutoGraph raises an error of a `tf.function` again as one of the same class only if this says
    # that a message makes one; those of the classes that the subclasses have besides do not.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class DtypeError(InteropError, TypeError):
    """A dtype has no counterpart on the other side: cast the value."""

    __module__ = "bridge"


class StructureError(InteropError, ValueError):
    """Arity, pytree, shape or name do not fit: change the call or the specification."""

    __module__ = "bridge"


class ArgumentError(StructureError, TypeError):
    """A value is of a class that cannot cross: pass an array, or a function."""

    __module__ = "bridge"


class UnsupportedError(StructureError, NotImplementedError):
    """There is no way to carry it, such as a callback: leave it out of what crosses."""

    __module__ = "bridge"


class PlatformError(InteropError, ValueError):
    """A platform is unknown or was not exported for: export again with `platforms=`."""

    __module__ = "bridge"


class LoweringError(PlatformError, NotImplementedError):
    """JAX cannot lower it for a platform: export for the others, or leave the primitive out."""

    __module__ = "bridge"


class VersionError(InteropError, ValueError, NotImplementedError):
    """A version does not have what is needed: take another one, or export less."""

    __module__ = "bridge"


class ShardingError(InteropError, ValueError):
    """The computation needs several devices where one is at hand: export without shardings."""

    __module__ = "bridge"


class FormatError(InteropError, ValueError):
    """A file or a message is damaged, or is not what it is said to be: write it again."""

    __module__ = "bridge"


class MissingDependencyError(InteropError, ImportError):
    """An optional package is not installed: install the extra that the message names."""

    __module__ = "bridge"

    @classmethod
    def of(
        cls, feature: str, package: str, *, extra: str, instead: str = ""
    ) -> MissingDependencyError:
        """Return the error of a feature that needs a package.

        Args:
            feature: the feature, as the user calls it.
            package: the package.
            extra: the extra of this distribution that installs the package.
            instead: what can be done without the package.
        """
        cure = f"pip install 'jax-tf-bridge[{extra}]'{f', or {instead}' if instead else ''}"
        return cls(f"{feature} needs {package}, which is not installed. To do: {cure}.")


def shown_as_base(cls: _Class) -> _Class:
    """Let a class that only a part of the bridge knows be shown as its first base, which is public.

    Other processes, in which it may not be known, get an error of that base, too.
    """
    base = cls.__bases__[0]
    cls.__module__, cls.__name__, cls.__qualname__ = base.__module__, base.__name__, base.__name__
    cls.__reduce__ = lambda error: (base, (str(error),))  # type: ignore[assignment,method-assign]
    return cls


def page_of(cls: type[InteropError]) -> str:
    """Return the section of the documentation about a class of errors.

    Example:
        >>> page_of(StructureError)
        'docs/reference/troubleshooting.md#structureerror'
    """
    return f"{_PAGE}#{cls.__name__.lower()}"


# What parts of a message that do not fit together end in, when they are taken for what they should
# be. What the system refuses (OSError) is no damage.
_CONTRADICTIONS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def refusing_damage(where: str) -> Iterator[None]:
    """Make a `FormatError` of the errors of a block that reads a file; an `InteropError` stays.

    Args:
        where: the file that is read, and the part of it.

    >>> with refusing_damage("saved_model.pb, signature f"):
    ...     [][3]
    Traceback (most recent call last):
        ...
    bridge.FormatError: saved_model.pb, signature f: parts of it do not fit \
together (IndexError: list index out of range). To do: copy it again, or write it again.
    """
    try:
        yield
    except InteropError:
        raise
    except _CONTRADICTIONS as error:
        raise FormatError(
            f"{where}: parts of it do not fit together ({type(error).__name__}: "
            f"{str(error)[:200]}). To do: copy it again, or write it again."
        ) from error


@contextmanager
def private_name(feature: str, package: str) -> Iterator[None]:
    """Make a `VersionError` of the errors of a block that takes a private name.

    Args:
        feature: the feature that needs the name.
        package: the package that has it, or had it.

    >>> with private_name("saving from several processes", "sys"):
    ...     sys.moved
    Traceback (most recent call last):
        ...
    bridge.VersionError: saving from several processes needs a private part of sys \
that the installed version does not have (module 'sys' has no attribute 'moved'). To do: install \
another version of sys, or a newer jax-tf-bridge.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        version = getattr(sys.modules.get(package), "__version__", "the installed version")
        raise VersionError(
            f"{feature} needs a private part of {package} that {version} does not have "
            f"({quote(error)}). To do: install another version of {package}, or a newer "
            "jax-tf-bridge."
        ) from error


def quote(error: Exception) -> str:
    """Return the message of an error for the middle of a sentence, without its full stop.

    Example:
        >>> quote(ValueError("The rank is 2."))
        'The rank is 2'
    """
    return str(error).rstrip().removesuffix(".")
