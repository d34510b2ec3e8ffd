"""What a forward and a backward pass are without residuals: a call, and its VJP."""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.errors import StructureError
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import find_main, functions_of
from xla_call_module.stablehlo.rewriting import new_function, run_passes

_PLATFORM_INDEX = -1


def _drop(parsed: ParsedCall) -> ParsedCall:
    call, main = parsed.call, find_main(parsed.module)
    count = len(call.own_results)
    inline_calls(parsed.module)
    last = list(main.regions[0].blocks[0].operations)[-1].operation
    with main.context, last.location:
        returned = list(last.operands)[:count]
        func.ReturnOp(returned, ip=ir.InsertionPoint(last))
        last.erase()
        kind = ir.FunctionType.get(
            [value.type for value in main.regions[0].blocks[0].arguments],
            [value.type for value in returned],
        )
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        if "res_attrs" in main.attributes:
            attributes = list(main.attributes["res_attrs"])[:count]
            main.attributes["res_attrs"] = ir.ArrayAttr.get(attributes)
    run_passes(parsed.module, "cse")
    return parsed.rewritten(results=call.own_results, residual_results=0)


# For a forward pass whose residuals nothing takes, or are computed again where they are taken.
DROP_RESIDUALS = ModulePass(
    name="dropped_residuals",
    ensures="no result is a residual",
    violation=lambda parsed: "it returns residuals" if parsed.call.residual_results else "",
    rewrite=_drop,
    requires=("restored_constants",),
    may_apply=lambda call: call.residual_results > 0,
)


def join_residuals(forward: ParsedCall, backward: ParsedCall) -> ParsedCall:
    """Return the VJP that a backward pass is once it computes its residuals."""
    primal, vjp = forward.call, backward.call
    count = primal.residual_results
    own = len(primal.args) + len(primal.own_results)
    if count != vjp.residual_args or len(vjp.own_args) != own:
        raise StructureError(
            f"{primal.name} takes {len(primal.args)} arguments and hands {count} residuals on; "
            f"{vjp.name} takes {len(vjp.own_args)} and {vjp.residual_args}. "
            "Expected a forward pass and its backward pass."
        )
    first = _named_apart(forward.module, "forward")
    second = _named_apart(backward.module, "backward")
    for function in functions_of(forward.module).values():
        function.operation.detach_from_parent()
        backward.module.body.append(function)
    index = [_PLATFORM_INDEX] if primal.has_platform_index else []
    indices = [*index, *primal.kept], [*index, *vjp.kept]
    kept = _write_main(backward.module, (first, second), indices, own, count)
    return backward.rewritten(args=vjp.own_args, kept=kept, residual_args=0)


def _named_apart(module: Any, prefix: str) -> Any:
    """Make the functions of a module private, under names with a prefix, and return the main."""
    main, functions = find_main(module), functions_of(module)
    for name, function in functions.items():
        new = f"{prefix}_{name}"
        while new in functions:
            new += "_"
        ir.SymbolTable.replace_all_symbol_uses(name, new, module.operation)
        ir.SymbolTable.set_symbol_name(function, new)
        ir.SymbolTable.set_visibility(function, "private")
    return main


def _write_main(
    module: Any,
    mains: tuple[Any, Any],
    indices: tuple[list[int], list[int]],
    count: int,
    residuals: int,
) -> tuple[int, ...]:
    """Write a function that calls a forward and then a backward pass."""
    sources = dict[int, Any]()
    for main, numbers in zip(mains, indices, strict=True):
        for number, argument in zip(numbers, main.regions[0].blocks[0].arguments, strict=True):
            sources.setdefault(number, argument)
    taken = sorted(number for number in sources if number < count)
    forward, backward = mains
    call: Any = func.CallOp  # its stub lacks the form that takes a function
    with module.context, backward.location:
        types = [sources[number].type for number in taken]
        main = new_function(module, "main", types, backward.type.results, visibility="public")
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([_attributes_of(sources[n]) for n in taken])
        if "res_attrs" in backward.attributes:
            main.attributes["res_attrs"] = backward.attributes["res_attrs"]
        with ir.InsertionPoint(main.add_entry_block()):
            values = dict(zip(taken, main.arguments, strict=True))
            results = call(forward, [values[number] for number in indices[0]]).results
            values.update(enumerate(list(results)[len(results) - residuals :], count))
            inputs = zip(indices[1], backward.type.inputs, strict=True)
            given = [_converted(values[number], kind) for number, kind in inputs]
            func.ReturnOp(call(backward, given).results)
    return tuple(number for number in taken if number != _PLATFORM_INDEX)


def _attributes_of(argument: Any) -> Any:
    """Return the attributes of a function's argument, such as its sharding."""
    attributes = argument.owner.owner.attributes
    if "arg_attrs" not in attributes:
        return ir.DictAttr.get({})
    return ir.ArrayAttr(attributes["arg_attrs"])[argument.arg_number]


def _converted(value: Any, kind: Any) -> Any:
    """Return a value in the element type that is taken, at the current insertion point.

    It is another one for the platform index alone, which has 64 bits in what was exported while
    x64 was on.
    """
    if value.type == kind:
        return value
    made = ir.Operation.create("stablehlo.convert", results=[kind], operands=[value])
    return made.results[0]
