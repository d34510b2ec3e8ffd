"""Filtering of tracebacks: errors of a public function show the user's own lines and its name.

JAX does the same to its errors (`jax_traceback_filtering`). The environment variable
`JAX_TF_BRIDGE_TRACEBACK_FILTERING=off` keeps all frames.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from xla_call_module._autograph import exempt_from_autograph
from xla_call_module.errors import InteropError, explain_command
from xla_call_module.flags import FILTERING_VARIABLE, read_filtering

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_OWN = ("bridge", "savedmodel", "xla_call_module")
# What calls the user's functions on our behalf, or ours on the user's.
_FRAMEWORKS = ("jax", "jaxlib", "keras", "tensorflow", "tf_keras")
_INTERNAL = frozenset({*_OWN, *_FRAMEWORKS, "contextlib", "functools"})
# What a warning is not about, either: it names the line that the user wrote.
_CALLERS = frozenset({*_INTERNAL, "concurrent", "threading"})
# What the user's functions are made of.
_LIBRARIES = frozenset({*_INTERNAL, "equinox", "flax", "haiku", "numpy", "optree", "scipy"})


def api_boundary(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let the errors of a public function leave it without the frames inside of it.

    Frames of these packages, of JAX and of TensorFlow are left out but for the first after one of
    the user's: the public function that was called. An error of another class, such as one of the
    user's own function, keeps those behind the user's last frame. An `InteropError` gets a note
    with the command that explains its class. AutoGraph, whose errors have frames of its own, leaves
    the function as it is.
    """

    @functools.wraps(function)
    def boundary(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            leave_out_frames(error, decorated=True)
            raise  # which adds no frame

    # Keras and TensorFlow look for it, and not behind the decorator.
    boundary.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return exempt_from_autograph(boundary)


def leave_out_frames(error: Exception, *, decorated: bool = False) -> None:
    """Do what `api_boundary` does to an error, for a public function that catches it itself.

    A decorator costs a tenth of a call of a small function.
    """
    if filtered := read_filtering():
        _show_user_frames(error, first=int(decorated))
    if isinstance(error, InteropError):
        _add_page(error, filtered=filtered)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's program that runs now.

    It is the innermost one outside of these packages and of the frameworks that call them.
    """
    frame = _calling_frame(inspect.currentframe())
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def raised_at(error: Exception) -> tuple[str, list[str]]:
    """Return the line of the user's program that an error comes from, and what it called there."""
    entries = [*_entries(error.__traceback__)]
    own = [i for i, entry in enumerate(entries) if not _is_of(entry.tb_frame, _LIBRARIES)]
    packages = [
        str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        for entry in entries[own[-1] + 1 if own else 0 :]
    ]
    if not own:
        return "", packages
    place = entries[own[-1]]
    return f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}", packages


def is_internal_file(path: str) -> bool:
    """Return whether a source file belongs to one of these packages, or to JAX."""
    folders = (
        folder
        for package in (*_OWN, "jax", "jaxlib")
        for folder in getattr(sys.modules.get(package), "__path__", ())
    )
    return any(path.startswith(f"{folder}{os.sep}") for folder in folders)


def _calling_frame(frame: FrameType | None) -> FrameType:
    """Return the innermost frame of the user's around another one; or else the outermost."""
    assert frame is not None, "this is CPython"
    while _is_of(frame, _CALLERS) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_of(frame: FrameType, packages: frozenset[str]) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in packages


def _show_user_frames(error: Exception, *, first: int) -> None:
    """Leave the internal frames out of the tracebacks of an error and of those behind it."""
    entries = [*_entries(error.__traceback__)][first:]
    error.__traceback__ = _joined(_shown(entries, to_end=isinstance(error, InteropError)))
    seen, pending = {id(error)}, [error.__cause__, error.__context__]
    while pending:
        cause = pending.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        pending += [cause.__cause__, cause.__context__]
        caught = [*_entries(cause.__traceback__)]
        # What the user's program has caught before, or shows itself, stays as it is.
        if caught and _is_of(caught[0].tb_frame, _INTERNAL):
            cause.__traceback__ = _joined(_shown(caught, to_end=True)[1:])


def _shown(entries: Sequence[TracebackType], *, to_end: bool) -> list[TracebackType]:
    """Return the entries of the user's frames, and the first after each of their runs."""
    internal = [_is_of(entry.tb_frame, _INTERNAL) for entry in entries]
    own = [index for index, inside in enumerate(internal) if not inside]
    end = len(entries) if to_end else max(own, default=-1)
    hidden = [inside and before for inside, before in zip(internal[1:], internal, strict=False)]
    return [
        entry
        for index, (entry, is_hidden) in enumerate(zip(entries, [False, *hidden], strict=False))
        if index > end or not is_hidden
    ]


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _joined(entries: Sequence[TracebackType]) -> TracebackType | None:
    joined = None
    for entry in reversed(entries):
        joined = TracebackType(joined, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return joined


def _add_page(error: InteropError, *, filtered: bool) -> None:
    note = f"More: {explain_command(type(error))}"
    if filtered:
        note += f" ({FILTERING_VARIABLE}=off shows the frames inside of the packages)"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
