"""Errors of the bridge: one base class, one subclass for each remedy."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

# What to do with a file that TensorFlow alone can run.
THROUGH_TENSORFLOW = (
    "call it from JAX through TensorFlow, by bridge.call_tf(path), with variables='argument' where "
    "JAX is to differentiate by its variables"
)
_Class = TypeVar("_Class", bound=type["InteropError"])


_DISTRIBUTION = "jax-tf-bridge"


class InteropError(Exception):
    """Something cannot cross between JAX and TensorFlow.

    The message says what was found, what was expected, where, and what to do.
    """

    # AutoGraph raises an error of a `tf.function` again as one of the same class only if this says
    # that a message makes one; those of the classes that the subclasses have besides do not.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class DtypeError(InteropError, TypeError):
    """A dtype has no counterpart on the other side: cast the value."""


class StructureError(InteropError, ValueError):
    """Arity, pytree, shape or name do not fit: change the call or the specification."""


class ArgumentError(StructureError, TypeError):
    """A value is of a class that cannot cross: pass an array, or a function."""


class UnsupportedError(StructureError, NotImplementedError):
    """Something has no counterpart, such as a callback: leave it out."""


class PlatformError(InteropError, ValueError):
    """A platform is unknown or was not exported for: export again with `platforms=`."""


class LoweringError(PlatformError, NotImplementedError):
    """JAX cannot lower it for a platform: export for the others, or leave the primitive out."""


class VersionError(InteropError, ValueError, NotImplementedError):
    """A version does not have what is needed: take another one, or export less."""


class ShardingError(InteropError, ValueError):
    """The computation needs several devices, or a mesh: export it without shardings."""


class FormatError(InteropError, ValueError):
    """A file is damaged, or of another format: write it again."""


class MissingDependencyError(InteropError, ImportError):
    """An optional package is not installed: install the extra that the message names."""

    @classmethod
    def of(
        cls, feature: str, package: str, *, extra: str, instead: str = ""
    ) -> MissingDependencyError:
        """Return the error of a feature that needs a package."""
        cure = f"{installing(extra)}{f', or {instead}' if instead else ''}"
        return cls(f"{feature} needs {package}, which is not installed. To do: {cure}.")


# Users see them where they import them from.
for _class in (
    InteropError, DtypeError, StructureError, ArgumentError, UnsupportedError, PlatformError,
    LoweringError, VersionError, ShardingError, FormatError, MissingDependencyError,
):  # fmt: skip
    _class.__module__ = "bridge"


def installing(extra: str) -> str:
    """Return the command that installs an extra the way this package is installed.

    How it is says `direct_url.json` of the installed distribution
    (https://packaging.python.org/en/latest/specifications/direct-url/); it has none from an index.
    """
    from importlib import metadata

    try:
        text = metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        root = Path(__file__).parents[1]
        text = json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}})
    return _install_command(json.loads(text or "{}"), extra)


def _install_command(origin: Mapping[str, Any], extra: str) -> str:
    """Return the command for what `direct_url.json` says; empty for what an index has.

    >>> _install_command({}, "onnx")
    "pip install 'jax-tf-bridge[onnx]'"
    >>> checkout = {"url": "file:///home/me/bridge", "dir_info": {"editable": True}}
    >>> _install_command(checkout, "onnx")
    "pip install -e '.[onnx]' in /home/me/bridge"
    >>> _install_command({"url": "https://a.example/b.whl", "archive_info": {}}, "onnx")
    "pip install 'jax-tf-bridge[onnx] @ https://a.example/b.whl'"
    """
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"pip install {editable}'.[{extra}]' in {unquote(urlsplit(url).path)}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info'].get('vcs', 'git')}+{url}"
    return f"pip install '{_DISTRIBUTION}[{extra}]{f' @ {url}' if url else ''}'"


def shown_as_base(cls: _Class) -> _Class:
    """Let a class that only a part of the bridge knows be shown as its first base, which is public.

    Other processes, in which it may not be known, get an error of that base, too.
    """
    base = cls.__bases__[0]
    cls.__module__, cls.__name__, cls.__qualname__ = base.__module__, base.__name__, base.__name__
    cls.__reduce__ = lambda error: (base, (str(error),))  # type: ignore[assignment,method-assign]
    return cls


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put what an error is about in front of its message: one of several things of the user's.

    An error of the user's own code gets a note instead.

    >>> with naming("Signature 'train'"):
    ...     raise StructureError("f returns no array.")
    Traceback (most recent call last):
        ...
    bridge.StructureError: Signature 'train': f returns no array.
    """
    try:
        yield
    except InteropError as error:
        error.args = (f"{where}: {error}",)
        raise
    except Exception as error:
        error.add_note(where)
        raise


def remedy_for(value: object, otherwise: str) -> str:
    """Return the end of a message about what was passed in the place of an `Exported`.

    Example:
        >>> remedy_for("f", otherwise="pass a function")
        'To do: pass a function.'
    """
    if isinstance(value, bytes | bytearray | memoryview):
        otherwise = (
            "jax.export.deserialize(bytearray(data)) makes an Exported of what "
            "Exported.serialize() has returned, and where JAX refuses it as expired, bridge.save "
            "takes the path of a file with it"
        )
    return f"To do: {otherwise}."


def explain_command(cls: type[InteropError]) -> str:
    """Return the command that prints the section of the documentation about a class of errors.

    Example:
        >>> explain_command(StructureError)
        'jax-tf-bridge explain StructureError'
    """
    return f"{_DISTRIBUTION} explain {cls.__name__}"


# What parts of a message that do not fit together end in, when they are taken for what they should
# be. What the system refuses (OSError) is no damage.
_CONTRADICTIONS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def refusing_damage(where: str) -> Iterator[None]:
    """Make a `FormatError` of the errors of a block that reads a file, with where and what to do.

    Any other `InteropError` stays as it is.

    >>> with refusing_damage("saved_model.pb, signature f"):
    ...     [][3]
    Traceback (most recent call last):
        ...
    bridge.FormatError: saved_model.pb, signature f: parts of it do not fit \
together (IndexError: list index out of range). To do: copy it again, or write it again.
    """
    try:
        yield
    except FormatError as error:
        said = str(error) if where in str(error) else f"{where}: {error}"
        if "To do: " not in said:
            said = f"{said} To do: copy it again, or write it again."
        error.args = (said,)
        raise
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
    """Return the message of an error for the middle of a sentence, without what to do.

    Example:
        >>> quote(StructureError("The rank is 2. To do: pass a matrix."))
        'The rank is 2'
    """
    return str(error).partition(" To do: ")[0].rstrip().removesuffix(".")
