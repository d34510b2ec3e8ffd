"""The passes for the module of an `Exported`, which has no node around it that says the rest."""

from __future__ import annotations

from xla_call_module.analyses.tensorflow_functions import return_functions
from xla_call_module.call import CallModule
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.passes.retargeting import describe_version, version_for
from xla_call_module.stablehlo.attributes import read_changes, write_changes
from xla_call_module.stablehlo.modules import walk
from xla_call_module.stablehlo.rewriting import run_passes
from xla_call_module.versions import Release

_BEFORE = ("platforms", "linear_algebra", "constants", "gspmd", "composites", "mhlo_calls")
_UNKNOWN = "loc(unknown)"


def _violation(parsed: ParsedCall) -> str:
    located = (op for op in walk(parsed.module) if str(op.location) != _UNKNOWN)
    first = next(located, None)
    return "" if first is None else f"{first.name} has a source location"


def _drop(parsed: ParsedCall) -> ParsedCall:
    run_passes(parsed.module, "strip-debuginfo")
    return parsed.rewritten()


# The VJP of an `Exported` is traced when it is asked for, so its locations are the caller's files
# and lines, which would make the bytes of a file depend on who writes it. The passes of this file
# are no entry of `CallModule.changes`: the module computes the same in the same way.
DROP_LOCATIONS = ModulePass(
    name="locations",
    ensures="no operation has a source location",
    violation=_violation,
    rewrite=_drop,
    requires=("int8_products", "cut_convolutions", *_BEFORE),
)


def _return(parsed: ParsedCall) -> ParsedCall:
    return_functions(parsed.call, parsed.module)
    return parsed.rewritten(function_list=(), functions=())


RETURN_FUNCTIONS = ModulePass(
    name="tensorflow_functions",
    ensures="a call of a TensorFlow function holds the function itself",
    violation=lambda parsed: "the call has its functions apart" if parsed.call.functions else "",
    rewrite=_return,
    requires=_BEFORE,
    may_apply=lambda call: bool(call.functions),
)


def note_changes(release: Release | None) -> ModulePass:
    """Return the pass that writes the changes into the module, that of its version included."""

    def changes(call: CallModule) -> tuple[str, ...]:
        if release is None:
            return call.changes
        before, after = call.stablehlo_version, version_for(call, release)
        return (*call.changes, *describe_version(before, after))

    def violation(parsed: ParsedCall) -> str:
        return ", ".join(set(changes(parsed.call)) - set(read_changes(parsed.module)))

    def rewrite(parsed: ParsedCall) -> ParsedCall:
        write_changes(parsed.module, changes(parsed.call))
        return parsed.rewritten()

    return ModulePass(
        name="changes",
        ensures="the module says what was done to it",
        violation=violation,
        rewrite=rewrite,
        requires=_BEFORE,
    )
