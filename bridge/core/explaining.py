"""Errors of tracing a function, with a sentence in front that says what to do.

The errors stay of the classes that JAX and its frameworks raise, besides being ours. No framework
is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax import tree_util

from bridge.core._jax import tracing_error_kind
from xla_call_module.errors import (
    ArgumentError,
    InteropError,
    StructureError,
    UnsupportedError,
    shown_as_base,
)
from xla_call_module.tracebacks import is_internal_file

__all__ = ["calls_back", "explain_tracing", "flatten", "refusing_unsortable_keys"]

_BIND = (
    "takes an argument as a Python value, and what is exported gets arrays. To do: bind it, as in "
    "functools.partial(f, train=False), or leave it to its default; or compute with jnp.where and "
    "jax.lax.cond"
)
_FIXED = (
    "needs a size that was given a name as a number. To do: export it with a fixed size, as in "
    "args='f32[8,3]', or with a constraint that decides the comparison"
)
_SORTED = (
    "has a dict whose keys have no order, such as 1 and 'a' together, and JAX sorts keys. To do: "
    "take keys of one kind, such as text"
)
_SCOPE = (
    "gets symbolic sizes of several scopes, one of each call of jax.export.symbolic_shape. To do: "
    "pass scope= to the later calls, with the scope of the first; or give all arguments as text, "
    "as in args='f32[b,3], f32[c,3]'"
)
_KEY = (
    "draws random numbers, and has no key. To do: save it as it is for inference, with "
    "is_training=False (Haiku) or deterministic=True or train=False (linen); or pass a function "
    "that takes a key and hands it on, as in lambda params, key, x: f.apply(params, key, x)"
)
_STATE = (
    "changes its state, as in training. To do: save it as it is for inference, with train=False or "
    "use_running_average=True; or pass a function that calls apply with mutable= and returns the "
    "new state, too"
)
_BY_KIND = {"value": _BIND, "size": _FIXED, "keys": _SORTED, "scope": _SCOPE}
_OF_FRAMEWORKS = {
    ("haiku", "MissingRNGError"): _KEY,
    ("flax", "InvalidRngError"): _KEY,
    ("flax", "ModifyScopeVariableError"): _STATE,
}


def explain_tracing(name: str, error: Exception) -> StructureError | None:
    """Return the error to raise for one of tracing; None where it is the function's own.

    Args:
        name: the name of the function.
        error: the error that was raised.
    """
    if isinstance(error, InteropError):
        return None
    framework = type(error).__module__.partition(".")[0]
    what = _BY_KIND.get(tracing_error_kind(error)) or _OF_FRAMEWORKS.get(
        (framework, type(error).__name__)
    )
    if what is None:
        return None
    cls: Any = {ValueError: StructureError, TypeError: ArgumentError}.get(type(error))
    if cls is None:
        cls = shown_as_base(type(type(error).__name__, (StructureError, type(error)), {}))
    explained: StructureError = cls(f"{name} {what}. What was raised: {error}")
    return explained


@contextmanager
def refusing_unsortable_keys(where: str) -> Iterator[None]:
    """Return a context in which JAX's error of dict keys without an order is one of ours.

    Args:
        where: the thing that has such a dict, at the beginning of a sentence.

    Raises:
        StructureError: there is one.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, InteropError) or tracing_error_kind(error) != "keys":
            raise
        raise StructureError(f"{where} {_SORTED}.") from error


def flatten(tree: Any, *, where: str) -> tuple[list[Any], tree_util.PyTreeDef]:
    """Return the leaves of a pytree and its structure.

    Args:
        tree: any pytree.
        where: the name of the pytree in messages, at the beginning of a sentence.

    Raises:
        StructureError: it has a dict whose keys have no order.
    """
    try:
        return tree_util.tree_flatten(tree)
    except ValueError:
        with refusing_unsortable_keys(where):
            raise


def calls_back(name: str, frames: Sequence[tuple[str, int]], error: Exception) -> UnsupportedError:
    """Return the error of a function that calls back to Python.

    Args:
        name: the name of the function.
        frames: files and lines of the callback, from it outwards.
        error: the error of JAX.
    """
    equinox = _folder_of("equinox")
    own = [
        (file, line)
        for file, line in frames
        if not (is_internal_file(file) or (equinox and Path(file).is_relative_to(equinox)))
    ]
    at = f" at {own[0][0]}:{own[0][1]}" if own else ""
    if any(Path(file).parts[-2:] == ("equinox", "_errors.py") for file, _ in frames):
        return UnsupportedError(
            f"{name} checks its values with equinox.error_if{at}, which calls back to Python, and "
            "the callback cannot leave this process. To do: set the environment variable "
            "EQX_ON_ERROR=nan before equinox is imported, for NaN in the place of an error, or "
            "EQX_ON_ERROR=off; or pass throw=False to what diffrax, optimistix and lineax solve. "
            f"JAX says: {error}"
        )
    return UnsupportedError(
        f"{name} calls back to Python{at}, and the callback cannot leave this process. To do: "
        "leave pure_callback, io_callback and debug.print out of what is exported; a function of "
        "bridge.call_tf is called back with compiled=False, which graph=True replaces. JAX says: "
        f"{error}"
    )


def _folder_of(package: str) -> Path | None:
    file = getattr(sys.modules.get(package), "__file__", None)
    return None if file is None else Path(file).parent
