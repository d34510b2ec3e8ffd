"""The pass that leaves out some of the platforms that a module was lowered for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from xla_call_module._jax import PassManager, ir
from xla_call_module.analyses.branches import CASE, keep_platform
from xla_call_module.call import CallModule
from xla_call_module.errors import PlatformError
from xla_call_module.exported import carried_for
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.platforms import parse_platforms
from xla_call_module.stablehlo.modules import find_main

_CONSTANT = "stablehlo.constant"


def select_platforms(platforms: Sequence[str]) -> ModulePass:
    """Return the pass that keeps some platforms, in the order in which they are named.

    Where one stays, what runs on no other is left out, too. Where several stay, the module keeps
    the branches for those that went; nothing takes them. Running it raises a `PlatformError` where
    the call was not lowered for one of them, and what `to_exported` raises where the `Exported`
    that the call carries is damaged.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from xla_call_module import from_exported
        >>> from xla_call_module.passes.module_pass import run_passes
        >>> export = jax.export.export(jax.jit(jnp.sin), platforms=["cpu", "cuda", "tpu"])
        >>> run_passes(from_exported(export(1.0)), [select_platforms(["tpu", "cpu"])]).platforms
        ('tpu', 'cpu')
    """
    wanted = parse_platforms(platforms)
    return ModulePass(
        name="platforms",
        ensures=f"the call is for {', '.join(wanted)}",
        violation=functools.partial(_violation, wanted=wanted),
        rewrite=functools.partial(_select, wanted=wanted),
        may_apply=lambda call: call.platforms != wanted,
    )


def _violation(parsed: ParsedCall, *, wanted: tuple[str, ...]) -> str:
    platforms = parsed.call.platforms
    return "" if platforms == wanted else f"it is for {', '.join(platforms)}"


def _select(parsed: ParsedCall, *, wanted: tuple[str, ...]) -> ParsedCall:
    call, module = parsed.call, parsed.module
    _check_lowered(call, wanted)
    indices = [call.platforms.index(platform) for platform in wanted]
    if len(indices) == 1:
        keep_platform(module, indices[0])
        _drop_index(find_main(module), indices[0])
        PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
    elif indices != list(range(len(indices))):
        _renumber(find_main(module), indices)
    return parsed.rewritten(
        f"platforms {', '.join(call.platforms)} to {', '.join(wanted)}",
        platforms=wanted,
        exported=carried_for(call, wanted) if call.exported else b"",
    )


def _check_lowered(call: CallModule, wanted: tuple[str, ...]) -> None:
    if missing := [platform for platform in wanted if platform not in call.platforms]:
        raise PlatformError(
            f"{call.name} was lowered for {', '.join(call.platforms)}, and not for "
            f"{', '.join(missing)}. To do: name some of the former, or export it again with "
            f"platforms={list(wanted)}."
        )


def _drop_index(main: Any, index: int) -> None:
    """Make the platform index a constant, and no argument any more."""
    block = main.regions[0].blocks[0]
    argument = block.arguments[0]
    with main.context, main.location:
        start = ir.InsertionPoint.at_block_begin(block)
        argument.replace_all_uses_with(_constant(index, argument.type, start))
        block.erase_argument(0)
        kind = ir.FunctionType.get(list(main.type.inputs)[1:], list(main.type.results))
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        attributes = list(main.attributes["arg_attrs"])[1:]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _renumber(main: Any, indices: Sequence[int]) -> None:
    """Derive the old platform index from the new one, as JAX derives the number of a branch."""
    block = main.regions[0].blocks[0]
    argument = block.arguments[0]
    with main.context, main.location:
        start = ir.InsertionPoint(next(iter(block.operations)))
        placeholder = _constant(0, argument.type, start)
        # With x64 on the platform index has 64 bits, and that of a case 32.
        narrow = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        converted = ir.Operation.create(
            "stablehlo.convert", results=[narrow], operands=[placeholder], ip=start
        )
        case = ir.Operation.create(
            CASE,
            results=[argument.type],
            operands=[converted.results[0]],
            regions=len(indices),
            ip=start,
        )
        for region, index in zip(case.regions, indices, strict=True):
            end = ir.InsertionPoint(region.blocks.append())
            number = _constant(index, argument.type, end)
            ir.Operation.create("stablehlo.return", operands=[number], ip=end)
        argument.replace_all_uses_with(case.results[0])
        converted.operands[0] = argument
        placeholder.owner.erase()


def _constant(number: int, kind: Any, place: Any) -> Any:
    value = ir.Attribute.parse(f"dense<{number}> : {kind}")
    made = ir.Operation.create(_CONSTANT, results=[kind], attributes={"value": value}, ip=place)
    return made.results[0]
