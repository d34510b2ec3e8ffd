"""Export a function for several platforms, and explain the errors where it cannot be lowered."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export, tree_util
from jax.extend import source_info_util

from bridge.core._jax import (
    callback_frames,
    missing_rule,
    operation_frames,
    replace_vjp,
    trace_with_symbolic_solves,
    traced_program,
    unstable_calls,
)
from bridge.core.explaining import calls_back, explain_tracing
from bridge.exporting.call_check import Passed, check_call
from bridge.exporting.trace_errors import explain_refusal
from xla_call_module._jax import survive_forks
from xla_call_module.checks import DisabledCheck, parse_checks, unite
from xla_call_module.errors import (
    InteropError,
    LoweringError,
    StructureError,
    UnsupportedError,
    VersionError,
    quote,
)
from xla_call_module.exported import from_exported, to_jax_checks
from xla_call_module.linalg.lapack import is_portable
from xla_call_module.tracebacks import is_internal_file

# The errors of JAX where it cannot lower; its rule for `debug.print` ends in a `TypeError` with
# several platforms.
_REFUSALS = (NotImplementedError, ValueError, TypeError)
# What JAX says where a rule takes numbers alone, and a size is a symbol.
_OF_SYMBOLS = re.compile(r"shape polymorphism|non-constant size", re.IGNORECASE)
_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')


def export_for(
    fun: jax.stages.Wrapped,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    platforms: Sequence[str],
    disabled_checks: Sequence[DisabledCheck],
    passed: Passed | None = None,
    is_made_here: bool = False,
) -> export.Exported:
    """Return the `Exported` of a function, for all of the platforms."""
    check_call(fun, args, kwargs, name=name, passed=passed)
    survive_forks()

    def export_on(names: Sequence[str]) -> export.Exported:
        return _export(fun, args, kwargs, platforms=names, disabled_checks=disabled_checks)

    try:
        return trace_with_symbolic_solves(lambda: export_on(platforms))
    except Exception as error:
        check_call(fun, args, kwargs, name=name, passed=passed, error=error)
        explained = explain_tracing(name, error)
        if explained is not None:
            raise explained from error
        known = isinstance(error, _REFUSALS) and not isinstance(error, UnsupportedError)
        traced = _trace(fun, args, kwargs) if known else None
        if traced is None:
            if is_made_here:
                raise
            parameters = () if passed is None else passed.parameters
            refused = explain_refusal(
                name, lambda: fun.trace(*args, **kwargs), args, kwargs, parameters=parameters
            )
            if refused is None:
                raise
            raise refused from error
        if (frames := callback_frames(traced.jaxpr.jaxpr)) is not None:
            raise calls_back(name, frames) from error
        reasons = _reasons(export_on, platforms)
        usable = [platform for platform in platforms if platform not in reasons]
        obstacle = _obstacle(export_on(usable), disabled_checks) if usable else ""
        refusal = _explain(name, platforms, reasons, obstacle)
        if refusal is None:
            raise
        raise refusal from error


def _export(
    fun: jax.stages.Wrapped,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    platforms: Sequence[str],
    disabled_checks: Sequence[DisabledCheck],
) -> export.Exported:
    """Export with the library calls allowed that JAX does not guarantee and that are replaced."""

    def export_with(allowed: Sequence[DisabledCheck]) -> export.Exported:
        checks = to_jax_checks(allowed)
        return export.export(fun, platforms=platforms, disabled_checks=checks)(*args, **kwargs)

    def again(error: ValueError) -> export.Exported:
        targets = [target for target, _ in unstable_calls(error) if is_portable(target)]
        if not targets:
            raise error
        named = parse_checks(f"custom_call:{target}" for target in targets)
        return export_with(unite(disabled_checks, named))

    _leave_out_own_frames()
    try:
        exported = export_with(disabled_checks)
    except ValueError as error:
        exported = again(error)

    def differentiate() -> export.Exported:
        try:
            return exported.vjp()
        except ValueError as error:
            return again(error).vjp()

    try:
        return replace_vjp(exported, differentiate, program=traced_program(exported))
    except VersionError:  # the gate: its gradient has no library calls then
        return exported


@functools.cache
def _leave_out_own_frames() -> None:
    """Have JAX leave the frames of this library out of the locations of what it lowers.

    Otherwise modules are larger, and name the folder of this library. It is done once, since JAX
    forgets then what it has decided of each file.
    """
    rooms = [*Path(__file__).parents[1].glob("*"), Path(__file__).parents[2] / "xla_call_module"]
    for path in rooms:
        # The command line calls this library as a user does, wherever its program lies.
        if path.name != "cli":
            source_info_util.register_exclusion(str(path))


def _reasons(
    export_on: Callable[[Sequence[str]], export.Exported], platforms: Sequence[str]
) -> Mapping[str, Exception]:
    """Return the error of each platform for which a function cannot be lowered."""
    reasons = {}
    for platform in platforms:
        try:
            export_on([platform])
        except _REFUSALS as reason:
            reasons[platform] = reason
    return reasons


def refuse_static(
    fun: jax.stages.Wrapped,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    static: tuple[Sequence[int], Sequence[str]],
    name: str,
) -> None:
    """Refuse arguments that `jax.jit` was told to take as Python values."""
    positions, names = static
    positions_by_path = [(f"args[{i}]", i) for i in positions if -len(args) <= i < len(args)]
    positions_by_path += [(f"kwargs[{name!r}]", -1) for name in names if name in kwargs]
    if not positions_by_path:
        return
    where, position = positions_by_path[0]
    parameter = "value"
    with contextlib.suppress(TypeError, ValueError):  # of a builtin, which tells nothing
        parameters = [*inspect.signature(fun).parameters.values()][: len(args)]
        fixed = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
        parameter = fixed[position] if where.startswith("args") else names[0]
    raise StructureError(
        f"{where} of {name} is a static argument of jax.jit, its parameter {parameter}: the value "
        "is part of the program and cannot arrive as an array. To do: bind it first, as in "
        f"functools.partial(fun, {parameter}=value), or leave it to its default."
    )


def argument_names(
    fun: jax.stages.Wrapped, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the names of the flat arguments of a new export; empty where unknown.

    JAX has kept the trace, so this runs none of its Python.
    """
    count = len(tree_util.tree_leaves((args, kwargs)))
    known = fun.trace(*args, **kwargs).jaxpr.jaxpr.debug_info.arg_names or ()
    return tuple(known) if len(known) == count else ("",) * count


def explain_gradient(name: str, platforms: Sequence[str], error: Exception) -> LoweringError | None:
    """Return the error of a VJP that cannot be lowered; None where that is not the reason."""
    if (missing := missing_rule(error)) is None:
        return None
    primitive, lacking = missing
    usable = [platform for platform in platforms if platform not in lacking]
    reasons = dict.fromkeys(lacking, _without_rule(primitive))
    return _unlowered(f"The gradient of {name}", usable, reasons)


def _obstacle(exported: export.Exported, disabled_checks: Sequence[DisabledCheck]) -> str:
    """Return why TensorFlow cannot run what was lowered; empty where it can."""
    try:
        from_exported(exported, disabled_checks=disabled_checks)
    except InteropError as error:
        return quote(error)
    return ""


def _trace(
    fun: jax.stages.Wrapped, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> jax.stages.Traced | None:
    """Return the trace of a function; None where the function itself is not in order."""
    try:
        return fun.trace(*args, **kwargs)
    except _REFUSALS:
        return None


def _explain(
    name: str, platforms: Sequence[str], reasons: Mapping[str, Exception], obstacle: str
) -> InteropError | None:
    """Return the error for what each platform says, or None where each alone says nothing."""
    usable = [platform for platform in platforms if platform not in reasons]
    calls = {platform: unstable_calls(reason) for platform, reason in reasons.items()}
    if all(calls.get(platform) for platform in platforms):
        return _unstable(name, *calls[platforms[0]][0])
    if not reasons:
        return None
    said = {platform: _said(reason) for platform, reason in reasons.items()}
    return _unlowered(name, usable, said, obstacle)


def _unstable(name: str, target: str, location: str) -> StructureError:
    place = _PLACE.search(location)
    return StructureError(
        f"{name} calls {target} at {f'{place[1]}:{place[2]}' if place else location}, and JAX does "
        "not guarantee what that target means outside this process. To do: compute this part "
        "outside the exported function, or, if the TensorFlow that will run it has the target, "
        f"pass disabled_checks=['custom_call:{target}']."
    )


def _said(reason: Exception) -> str:
    if (missing := missing_rule(reason)) is not None:
        return _without_rule(missing[0])
    for target, _ in unstable_calls(reason):
        return f"it is lowered to the custom call {target}, whose meaning JAX does not guarantee"
    return f"{str(reason).partition(chr(10))[0].removesuffix('.')}{_at(reason)}"


def _at(reason: Exception) -> str:
    """Return where the operation is that cannot be lowered; empty where JAX does not say so."""
    own = [f" at {file}:{line}" for file, line in operation_frames(reason)
           if not is_internal_file(file)]  # fmt: skip
    return own[-1] if own else ""


def _without_rule(primitive: str) -> str:
    return f"JAX has no rule for the primitive {primitive} there"


def _unlowered(
    what: str, usable: Sequence[str], reasons: Mapping[str, str], obstacle: str = ""
) -> LoweringError:
    by_reason: dict[str, list[str]] = {}
    for platform, reason in reasons.items():
        by_reason.setdefault(reason, []).append(platform)
    said = "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in by_reason.items())
    cure = "leave the primitive out of what is exported"
    if _OF_SYMBOLS.search(said):
        cure = f"export it with fixed sizes, as in args='f32[8,3]', or {cure}"
    if obstacle:
        cure += f", since platforms={list(usable)} would not do either: {obstacle}"
    elif usable:
        cure = f"export it for the others, platforms={list(usable)}"
    return LoweringError(
        f"{what} cannot be lowered for {' and '.join(reasons)} ({said}). To do: {cure}."
    )
