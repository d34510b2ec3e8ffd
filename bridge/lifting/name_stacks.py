"""The name stacks of JAX, and the lines of the user's program, in the locations of a module.

JAX writes the name stack of an equation and its primitive as the name of what it lowers it to, with
the Python frames behind it: `loc("jit(f)/mlp/jit(relu)/max"("relu"(…:7:4)))`. Operations are
bound under the same stack and line, so that what is traced has the names of what was exported.

The name of an operation in a region begins with that of the loop or branch around it, and what JAX
traces for a region has a stack of its own; that in a function begins with nothing, or, up to JAX
0.10, with that of a call of it. These beginnings are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jax.extend import source_info_util

from bridge.core._jax import traceback_at
from xla_call_module._jax import location_kind
from xla_call_module.stablehlo.operation_locations import Frame, first_frame, location_name

# A call in transformations, as in `jvp(jit(f))`, of which the stack is `jvp()`.
_TRANSFORMED = re.compile(r"(.*\()(p?jit\([^()]*\))(\)+)")
# Parts that lowering adds: in front of what is in a region, and for calls that have no name.
_REGIONS = re.compile(r"body|body_pred|cond|branch_\d+_fun")
_CALLS = frozenset({"closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr"})

# The stack of frames as JAX has it, by the innermost frame.
Tracebacks = dict[Frame, Any]


class NameStacks:
    """The name stacks and lines of the operations of one block, as contexts of JAX."""

    def __init__(self, block: Any, tracebacks: Tracebacks, *, is_traced: bool) -> None:
        """Begin with the stack that is current.

        Args:
            block: the block.
            tracebacks: those of a module, to which more are added.
            is_traced: whether the block is that of the function that was traced.
        """
        self._around = _parts(location_name(block.owner.operation))
        self._is_traced = is_traced
        self._is_function = block.owner.operation.name == "func.func"
        self._stack = source_info_util.current_name_stack()
        self._stacks: dict[str, Any] = {}
        self._tracebacks = tracebacks
        self._frames: Any = None  # of the operation before, with its traceback
        self._traceback: Any = None

    def of(self, raw: Any) -> AbstractContextManager[Any]:
        """Return the context to bind the equations of an operation in."""
        location = raw.location
        if location_kind(location) != "name":
            return nullcontext()
        name = location.name_str
        if name not in self._stacks:
            self._stacks[name] = self._stack_of(name)
        frames = location.child_loc
        if self._frames is None or frames != self._frames:
            self._frames, self._traceback = frames, self._traceback_of(frames)
        return _SourceInfo(self._traceback, self._stacks[name])

    def _stack_of(self, name: str) -> Any:
        *scopes, _ = self._inside(_parts(name))
        return _extend(self._stack, scopes)

    def _inside(self, parts: list[str]) -> list[str]:
        """Return the parts of a name without those of what is around the block."""
        if self._is_function:
            calls = [number for number, part in enumerate(parts[:-1]) if "jit(" in part]
            if self._is_traced:  # what was lifted once has its name twice
                calls = [number for number in calls if set(parts[: number + 1]) == {parts[0]}]
            return parts[calls[-1] + 1 :] if calls else parts
        around = self._around
        for known in (around, around[:-1]):
            if parts[: len(known)] == known and len(parts) > len(known):
                inside = parts[len(known) :]
                is_region = len(inside) > 1 and _REGIONS.fullmatch(inside[0])
                return inside[1:] if is_region else inside
        return parts

    def _traceback_of(self, frames: Any) -> Any:
        frame = first_frame(frames)
        if frame is None:
            return None
        if frame not in self._tracebacks:
            self._tracebacks[frame] = traceback_at(*frame)
        return self._tracebacks[frame]


def call_context(call: Any) -> AbstractContextManager[Any]:
    """Return the context in which the operations of a function are bound in place of a call."""
    *_, last = _parts(location_name(call))
    return source_info_util.set_name_stack(_extend(source_info_util.current_name_stack(), [last]))


def called_name(call: Any, name: str) -> str:
    """Return the name in JAX of what is called, or that in the module for what has none."""
    *_, last = _parts(location_name(call))
    named = re.fullmatch(r"p?jit\(([^()]*)\)", last)
    return named[1] if named else name


def _extend(stack: Any, scopes: Iterable[str]) -> Any:
    for scope in scopes:
        if scope and scope not in _CALLS:
            stack = stack.extend(scope)
    return stack


def _parts(name: str) -> list[str]:
    """Split a name at the slashes that are not in parentheses, as in `jvp(a/b)/add`."""
    parts: list[str] = []
    for piece in name.split("/"):
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f"/{piece}"
        else:
            parts.append(piece)
        if "(" in piece and (transformed := _TRANSFORMED.fullmatch(parts[-1])):
            parts[-1:] = [transformed[1] + transformed[3], transformed[2]]
    return parts


class _SourceInfo:
    """A name stack and a line of the user's program for equations.

    It is `jax.extend.source_info_util.user_context`, which would also add that line to errors that
    pass; those of lifting have it in their messages.
    """

    __slots__ = ("_context",)

    def __init__(self, traceback: Any, stack: Any) -> None:
        self._context = source_info_util.user_context(traceback, name_stack=stack)

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)
