"""The lines and names of a user's program that the locations of a parsed module hold.

Source: https://mlir.llvm.org/docs/Dialects/Builtin/#location-attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from xla_call_module._jax import ir, location_kind
from xla_call_module.stablehlo.attributes import callee_of, symbol_name
from xla_call_module.tracebacks import is_internal_file

UNKNOWN_PLACE = "an unknown place"


class Frame(NamedTuple):
    """A frame of the user's program.

    Attributes:
        file: the path of the file.
        line: the number of the line.
        function: the name of the function; empty if it is unknown.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def describe_location(operation: Any, callers: Mapping[str, str] | None = None) -> str:
    """Return the place of an operation: its innermost user frame, as `file.py:12`, or its scope.

    A constant, such as an array of a module that the function closes over, has the place where it
    is used, since its own is where the whole function was exported. The lines of these packages are
    nobody's.

    What JAX lowers once and calls from many places, such as `jnp.linalg.cholesky`, has no frame of
    its own; the function around it has that of its first call, or else that call has it.

    Args:
        operation: the operation.
        callers: `places_of_callers` of its module, where many of its operations are described.
    """
    if operation.name == "stablehlo.constant":
        used = (use.owner for use in operation.results[0].uses)
        frames = (frame for user in used for frame in _frames(user.location))
        if used_at := next(frames, None):
            return str(used_at)
    frame, function = _frame_around(operation)
    if not frame and function.name == "func.func":
        if callers is None:
            callers = places_of_callers(function.parent)
        frame = callers.get(symbol_name(function), "")
    return frame or location_name(operation) or UNKNOWN_PLACE


def places_of_callers(module: Any) -> dict[str, str]:
    """Return the place of the first call of each function of a module, where that is known."""
    calls: dict[str, Any] = {}

    def visit(operation: Any) -> Any:
        if operation.name == "func.call":
            calls.setdefault(callee_of(operation), operation)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    found: dict[str, str] = {}
    for name in calls:
        seen: set[str] = set()
        around = name
        while around in calls and around not in seen:
            seen.add(around)
            frame, function = _frame_around(calls[around])
            if frame:
                found[name] = frame
                break
            around = symbol_name(function) if function.name == "func.func" else ""
    return found


def _frame_around(operation: Any) -> tuple[str, Any]:
    """Return the innermost frame of an operation, or of one around it, and its function."""
    function = ancestor = operation
    while ancestor is not None:
        if found := first_frame(ancestor.location):
            return str(found), function
        if ancestor.name == "func.func":
            function = ancestor
        ancestor = ancestor.parent
    return "", function


def first_frame(location: Any) -> Frame | None:
    """Return the innermost frame of a location; None if it has none."""
    return next(_frames(location), None)


def _frames(location: Any) -> Iterator[Frame]:
    """Return the frames in a location, the innermost first."""
    pending = [(location, "")]
    while pending:
        here, name = pending.pop()
        match location_kind(here):
            case "file" if not is_internal_file(here.filename):
                yield Frame(here.filename, here.start_line, name)
            case "name":
                pending.append((here.child_loc, here.name_str))
            case "callsite":
                pending += [(here.caller, ""), (here.callee, "")]
            case "fused":
                pending += [(one, "") for one in reversed(list(here.locations))]


def location_name(operation: Any) -> str:
    """Return the name in the location of an operation or an argument; empty if it has none."""
    location = operation.location
    return str(location.name_str) if location_kind(location) == "name" else ""


def describe_primitive(operation: Any) -> str:
    """Return the last part of the scope in an operation's location, as in `jit(f)/jit(g)/cholesky`.

    In what JAX lowers once and calls from many places it is all that there is, `cholesky`, or has
    one of those places behind it. A name in front of a file's is that of a Python function.
    """
    location = operation.location
    scope, _, primitive = location_name(operation).rpartition("/")
    if not re.fullmatch(r"\w+", primitive):
        return ""
    return "" if not scope and location_kind(location.child_loc) == "file" else primitive


def argument_name(argument: Any, functions: Mapping[str, Any]) -> str:
    """Return the name in an argument's location, or in that of the function it is handed on to.

    With symbolic shapes JAX wraps the lowered function in a new `main`, whose own arguments have
    no locations.
    """
    if own := _own_name(argument):
        return own
    for use in argument.uses:
        if use.owner.operation.name == "func.call":
            callee = functions[callee_of(use.owner)]
            if handed := _own_name(callee.regions[0].blocks[0].arguments[use.operand_number]):
                return handed
    return ""


def _own_name(argument: Any) -> str:
    name = location_name(argument)
    return "" if not name or location_kind(argument.location.child_loc) else name
