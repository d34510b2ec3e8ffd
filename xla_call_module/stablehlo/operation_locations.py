"""The lines and names of a user's program that the locations of a parsed module hold.

Source: https://mlir.llvm.org/docs/Dialects/Builtin/#location-attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from xla_call_module._jax import ir, location_kind
from xla_call_module.stablehlo.attributes import callee_of, symbol_name
from xla_call_module.tracebacks import is_internal_file

UNKNOWN_PLACE = "an unknown place"


def describe_location(operation: Any) -> str:
    """Return the place of an operation: its innermost user frame, as `file.py:12`, or its scope.

    A constant, such as an array of a module that the function closes over, has the place where it
    is used, since its own is where the whole function was exported. The lines of these packages are
    nobody's.

    What JAX lowers once and calls from many places, such as `jnp.linalg.cholesky`, has no frame of
    its own; the function around it has that of its first call, or else that call has it.
    """
    if operation.name == "stablehlo.constant":
        used = (use.owner for use in operation.results[0].uses)
        frames = (frame for user in used for frame in _frames(user.location))
        if frame := next(frames, ""):
            return frame
    place: Any = operation
    seen: set[str] = set()
    while place is not None:
        function = ancestor = place
        while ancestor is not None:
            if frame := next(_frames(ancestor.location), ""):
                return frame
            if ancestor.name == "func.func":
                function = ancestor
            ancestor = ancestor.parent
        place = _first_call(function, seen)
    return _name_of(operation.location) or UNKNOWN_PLACE


def _frames(location: Any) -> Iterator[str]:
    """Return the lines in a location, the innermost frame first."""
    pending = [location]
    while pending:
        here = pending.pop()
        match location_kind(here):
            case "file" if not is_internal_file(here.filename):
                yield f"{here.filename}:{here.start_line}"
            case "name":
                pending.append(here.child_loc)
            case "callsite":
                pending += [here.caller, here.callee]
            case "fused":
                pending += reversed(list(here.locations))


def _name_of(location: Any) -> str:
    return str(location.name_str) if location_kind(location) == "name" else ""


def _first_call(function: Any, seen: set[str]) -> Any:
    """Return the first call of a function in its module; None for none, or if it was `seen`."""
    if function.name != "func.func":
        return None
    name = symbol_name(function)
    if name in seen:
        return None
    seen.add(name)
    if name == "main":  # which nothing in the module calls
        return None
    calls: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "func.call" and callee_of(operation) == name:
            calls.append(operation)
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    function.parent.walk(visit)
    return calls[0] if calls else None


def describe_primitive(operation: Any) -> str:
    """Return the last part of the scope in an operation's location, as in `jit(f)/jit(g)/cholesky`.

    In what JAX lowers once and calls from many places it is all that there is, `cholesky`, or has
    one of those places behind it. A name in front of a file's is that of a Python function.
    """
    location = operation.location
    scope, _, primitive = _name_of(location).rpartition("/")
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
    location = argument.location
    name = _name_of(location)
    return "" if not name or location_kind(location.child_loc) else name
