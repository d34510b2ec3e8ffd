"""Modules with unknown dimensions, for arguments of known shapes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xla_call_module._jax import func, ir, refine_module, stablehlo
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.inlining import call_definitions
from xla_call_module.stablehlo.modules import (
    TensorType,
    find_main,
    first_line,
    open_module,
    read_main,
    serialize_module,
    walk,
)
from xla_call_module.stablehlo.rewriting import new_function, replace_operation

_GENERAL = "_general_main"


def refine(call: CallModule, shapes: Sequence[Sequence[int]]) -> CallModule:
    """Return the call for arguments of given shapes; its shape assertions are gone."""
    with _refined(call, shapes, check_assertions=False) as module:
        types = read_main(module)
        operands = zip(call.operands, types.args, strict=True)
        results = zip(call.results, types.results, strict=True)
        return dataclasses.replace(
            call,
            module=serialize_module(module, call.stablehlo_version),
            args=tuple(_with_shape(spec, refined) for spec, refined in operands),
            results=tuple(_with_shape(spec, refined) for spec, refined in results),
            kept=tuple(range(len(call.operands))),
            exported=b"",
        )


def refine_results(
    call: CallModule,
    shapes: Sequence[Sequence[int]],
    module: Any = None,
    *,
    check_assertions: bool = False,
) -> tuple[TensorType, ...]:
    """Return the types of the results for arguments of given shapes."""
    with _refined(call, shapes, module, check_assertions=check_assertions) as refined:
        return read_main(refined).results


def accepts_sizes(call: CallModule, sizes: Mapping[str, int]) -> bool:
    """Return whether a function takes sizes, by its specifications, assertions and constraints."""
    shapes = [evaluate_shape(spec.shape or (), sizes) for spec in call.operands]
    try:
        bind_symbols(call.name, call.operands, shapes)
        refine_results(call, [[size or 0 for size in s] for s in shapes], check_assertions=True)
    except StructureError:
        return False
    return True


def _with_shape(spec: TensorSpec, refined: TensorType) -> TensorSpec:
    return dataclasses.replace(spec, shape=tuple(size or 0 for size in refined.shape))


@contextlib.contextmanager
def _refined(
    call: CallModule,
    shapes: Sequence[Sequence[int]],
    parsed: Any = None,
    *,
    check_assertions: bool,
) -> Iterator[Any]:
    opened = open_module(call.module) if parsed is None else contextlib.nullcontext(parsed)
    with opened as module:
        call_definitions(module)  # the refinement does not enter them
        guard_divisions(module)
        _take_shapes(module, shapes)
        try:
            refined = refine_module(module, check_assertions=check_assertions)
        except (RuntimeError, ValueError) as error:
            raise StructureError(
                f"{call.name} cannot be called with the shapes {[tuple(s) for s in shapes]}: "
                f"{first_line(error)}. To do: pass shapes that it was exported for."
            ) from error
        yield refined


def _take_shapes(module: Any, shapes: Sequence[Sequence[int]]) -> None:
    """Put a new main function in front of the old one, in place, whose arguments have shapes."""
    main = find_main(module)
    offset = int(read_main(module).has_platform_index)
    kinds, results = list(main.type.inputs), list(main.type.results)
    with module.context, main.location:
        given = [
            *kinds[:offset],
            *(
                ir.RankedTensorType.get(shape, ir.RankedTensorType(kind).element_type)
                for kind, shape in zip(kinds[offset:], shapes, strict=True)
            ),
        ]
        main.attributes["sym_name"] = ir.StringAttr.get(_GENERAL)
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        front = new_function(module, "main", given, results, visibility="public")
        if "arg_attrs" in main.attributes:  # which say what the platform index is
            front.attributes["arg_attrs"] = main.attributes["arg_attrs"]
        with ir.InsertionPoint(front.add_entry_block()):
            passed = [
                argument if argument.type == kind else stablehlo.convert(kind, argument)
                for argument, kind in zip(front.arguments, kinds, strict=True)
            ]
            called = func.CallOp(results, ir.FlatSymbolRefAttr.get(_GENERAL), passed)
            func.ReturnOp(list(called.results))


_DIVISIONS = frozenset({"stablehlo.divide", "stablehlo.remainder"})


def guard_divisions(module: Any) -> None:
    """Have integer divisions, in place, divide by one instead of zero, and choose XLA's result."""
    for operation in [op for op in walk(module) if _may_divide_by_zero(op)]:
        with ir.InsertionPoint(operation), operation.location:
            _guard(operation)


def _may_divide_by_zero(operation: Any) -> bool:
    if operation.name not in _DIVISIONS:
        return False
    type_ = ir.RankedTensorType(operation.results[0].type)
    if not isinstance(type_.element_type, ir.IntegerType) or type_.encoding is not None:
        return False
    return not _is_constant_without_zeros(operation.operands[1])


def _is_constant_without_zeros(value: Any) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return False
    elements = ir.DenseElementsAttr(owner.attributes["value"])
    return elements.is_splat and ir.IntegerAttr(elements.get_splat_value()).value != 0


def _guard(operation: Any) -> None:
    dividend, divisor = operation.operands
    equal = stablehlo.ComparisonDirectionAttr.get("EQ")
    # A constant would need a shape that is known.
    zero = stablehlo.subtract(divisor, divisor)
    one = stablehlo.convert(divisor.type, stablehlo.compare(divisor, divisor, equal))
    is_zero = stablehlo.compare(divisor, zero, equal)
    other = stablehlo.select(is_zero, one, divisor)
    if operation.name == "stablehlo.divide":
        divided, instead = stablehlo.divide(dividend, other), stablehlo.subtract(zero, one)
    else:
        divided, instead = stablehlo.remainder(dividend, other), dividend
    replace_operation(operation, [stablehlo.select(is_zero, instead, divided)])
