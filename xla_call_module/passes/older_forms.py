"""The passes that give another form to operations that a release of TensorFlow does not run."""

from __future__ import annotations

import functools
from collections.abc import Container
from typing import Any

from xla_call_module.passes.gspmd import to_gspmd
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.inlining import call_definitions
from xla_call_module.stablehlo.mhlo import expand_custom_calls, is_expandable
from xla_call_module.stablehlo.modules import custom_call_target, walk
from xla_call_module.versions import KEPT_FOR_ANY, Feature, Release

# https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions, version 8
_POLYMORPHIC = "jax.uses_shape_polymorphism"


def forms_for(release: Release | None) -> tuple[ModulePass, ...]:
    """Return the passes that give a module the forms that a consumer runs, in their order."""
    # Composites come before the calls of MHLO, which may be in their definitions.
    return (to_gspmd(release), call_composites(release), expand_mhlo_calls(release))


def call_composites(release: Release | None) -> ModulePass:
    """Return the pass that calls the definitions of composites where the consumer runs none.

    With symbolic dimensions none does: TensorFlow does not refine the shapes in definitions.
    """
    lacks = Feature.COMPOSITE in (release or KEPT_FOR_ANY).lacks
    return ModulePass(
        name="composites",
        ensures="there is no composite that the consumer does not run",
        violation=functools.partial(_find_composite, lacks=lacks),
        rewrite=_call_definitions,
        requires=("platforms", "linear_algebra", "constants", "gspmd"),
    )


def _find_composite(parsed: ParsedCall, *, lacks: bool) -> str:
    if not lacks and not _is_polymorphic(parsed.module):
        return ""
    first = next((op for op in walk(parsed.module) if op.name == COMPOSITE), None)
    return "" if first is None else f"it has the composite {first.attributes['name']}"


def _is_polymorphic(module: Any) -> bool:
    """Return whether JAX lowered it with symbolic dimensions, which a node need not tell."""
    attributes = module.operation.attributes
    return _POLYMORPHIC in attributes and str(attributes[_POLYMORPHIC]) == "true"


def _call_definitions(parsed: ParsedCall) -> ParsedCall:
    call_definitions(parsed.module)
    return parsed.rewritten("composites by their definitions")


def expand_mhlo_calls(release: Release | None) -> ModulePass:
    """Return the pass that expands the custom calls of MHLO that the consumer does not run."""
    lacks = (release or KEPT_FOR_ANY).lacks
    return ModulePass(
        name="mhlo_calls",
        ensures="there is no custom call of MHLO that the consumer lacks and StableHLO expresses",
        violation=functools.partial(_find_call, lacks=lacks),
        rewrite=functools.partial(_expand, lacks=lacks),
        requires=("platforms", "linear_algebra", "constants", "gspmd", "composites"),
    )


def _find_call(parsed: ParsedCall, *, lacks: Container[Feature]) -> str:
    first = next((op for op in walk(parsed.module) if is_expandable(op, lacks)), None)
    return "" if first is None else f"it calls {custom_call_target(first)}"


def _expand(parsed: ParsedCall, *, lacks: Container[Feature]) -> ParsedCall:
    expand_custom_calls(parsed.module, lacks)
    return parsed.rewritten("operations of MHLO by those of StableHLO")
