"""The pass that takes source locations out of a module.

The VJP of an `Exported` is traced when it is asked for, so its locations tell where that happened:
the caller's files and lines, which are nothing of the function's and would make the bytes of a
file depend on who writes it.
"""

from __future__ import annotations

from xla_call_module._jax import PassManager
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.modules import walk

_UNKNOWN = "loc(unknown)"


def _violation(parsed: ParsedCall) -> str:
    located = (op for op in walk(parsed.module) if str(op.location) != _UNKNOWN)
    first = next(located, None)
    return "" if first is None else f"{first.name} has a source location"


def _drop(parsed: ParsedCall) -> ParsedCall:
    PassManager.parse("builtin.module(strip-debuginfo)").run(parsed.module.operation)
    return parsed.rewritten()


# It is no entry of `CallModule.changes`: the module computes the same in the same way.
DROP_LOCATIONS = ModulePass(
    name="locations",
    ensures="no operation has a source location",
    violation=_violation,
    rewrite=_drop,
    requires=(
        "platforms",
        "linear_algebra",
        "int8_products",
        "constants",
        "gspmd",
        "composites",
        "mhlo_calls",
    ),
)
