"""Shardings of a module for XLA's older partitioner, GSPMD, alone.

An exported module that names several devices holds each sharding twice, as an attribute of GSPMD,
`mhlo.sharding`, and among the frontend attributes as one of Shardy
(https://openxla.org/shardy). Around the results it has a custom call for Shardy that TensorFlow
2.17 and older do not know.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from xla_call_module._jax import dense_elements, ir
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    parse_module,
    serialize_module,
    uses_shardy,
    walk,
)
from xla_call_module.versions import LAST_WITHOUT_SHARDY, Release

_FRONTEND = "mhlo.frontend_attributes"
_GSPMD = "mhlo.sharding"
_SHARDY = "xla.sdy."
_OF_RESULTS = f"{_SHARDY}FuncResultSharding"
_CONSTRAINT = "Sharding"
_SHAPES = "indices_of_shape_operands"


def is_only_shardy(operation: Any) -> bool:
    """Return whether an operation or its sharding has no meaning for GSPMD, as a `shard_map`."""
    target = custom_call_target(operation)
    if target.startswith(_SHARDY):
        return target != _OF_RESULTS
    attributes = operation.attributes
    sharded = _FRONTEND in attributes and f"{_SHARDY}sharding" in ir.DictAttr(attributes[_FRONTEND])
    return sharded and _GSPMD not in attributes


def to_gspmd(release: Release | None) -> ModulePass:
    """Return the pass that leaves the shardings for GSPMD alone where the consumer needs that.

    A release without Shardy does. On one device both partitioners have nothing to do, so there any
    release takes that form. And each release needs it for symbolic dimensions: TensorFlow does not
    know the shape of what the call returns that holds Shardy's sharding of a result.
    """
    return ModulePass(
        name="gspmd",
        ensures="shardings are those of GSPMD alone where the consumer reads no others",
        violation=functools.partial(_violation, release=release),
        rewrite=_to_gspmd,
        requires=("platforms", "linear_algebra", "constants"),
        may_apply=lambda call: mentions(call.module, [b"sdy"]),
    )


def _violation(parsed: ParsedCall, *, release: Release | None) -> str:
    call, module = parsed.call, parsed.module
    if not uses_shardy(module):
        return ""
    if call.uses_shardy and (release is None or release.shardy):
        if not call.symbols or _only_shardy(_doubled(parsed)):  # which stays as it is
            return ""
        return "TensorFlow refines no symbolic dimensions around Shardy's calls"
    return "it has shardings of Shardy"


def _only_shardy(module: Any) -> bool:
    return any(map(is_only_shardy, walk(module)))


def _doubled(parsed: ParsedCall) -> Any:
    """Return the module with the shardings of both, as serializing it makes it.

    Before it has operations of Shardy's dialect and none of GSPMD's.
    """
    with parsed.module.context:
        return parse_module(serialize_module(parsed.module, parsed.call.stablehlo_version))


def _to_gspmd(parsed: ParsedCall) -> ParsedCall:
    module = _doubled(parsed)
    for operation in list(walk(module)):
        target = custom_call_target(operation)
        if target == _OF_RESULTS:
            # The results of the function have their shardings as attributes of GSPMD.
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
            continue
        if not is_only_shardy(operation):
            _strip(operation)
        if target == _CONSTRAINT and _is_dynamic(operation.results[0]):
            _give_shape(operation)
    call = parsed.call
    is_all = not _only_shardy(module)
    return parsed.rewritten(
        "shardings for GSPMD",
        module=module,
        uses_shardy=call.uses_shardy and not is_all,
        version=min(call.version, LAST_WITHOUT_SHARDY) if is_all else call.version,
    )


def _is_dynamic(value: Any) -> bool:
    return not ir.RankedTensorType(value.type).has_static_shape


def _give_shape(call: Any) -> None:
    """Add the shape of the result, which is that of the operand, as JAX does for GSPMD.

    Without it TensorFlow does not find the sizes of what follows.
    """
    (operand,) = call.operands
    if _SHAPES in call.attributes:
        return
    with call.context, call.location, ir.InsertionPoint(call):
        index = dense_elements(np.array([1]), ir.IntegerType.get_signless(64))
        made = ir.Operation.create(
            call.name,
            results=[call.results[0].type],
            operands=[operand, _shape_of(operand)],
            attributes={**{n.name: n.attr for n in _named(call)}, _SHAPES: index},
        )
    call.results[0].replace_all_uses_with(made.results[0])
    call.erase()


def _shape_of(value: Any) -> Any:
    number = ir.IntegerType.get_signless(32)
    axes = range(ir.RankedTensorType(value.type).rank)
    sizes = []
    for axis in axes:
        dimension = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis)}
        size = _make("get_dimension_size", [value], [], number, dimension)
        sizes.append(_make("reshape", [size], [1], number, {}))
    first = {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)}
    return _make("concatenate", sizes, [len(axes)], number, first)


def _make(
    name: str, operands: list[Any], shape: list[int], element: Any, attributes: dict[str, Any]
) -> Any:
    made = ir.Operation.create(
        f"stablehlo.{name}",
        results=[ir.RankedTensorType.get(shape, element)],
        operands=operands,
        attributes=attributes,
    )
    return made.results[0]


def _named(operation: Any) -> list[Any]:
    attributes = operation.attributes
    return [attributes[index] for index in range(len(attributes))]


def _strip(operation: Any) -> None:
    attributes = operation.attributes
    if _FRONTEND in attributes:
        kept = _without_shardy(ir.DictAttr(attributes[_FRONTEND]))
        if kept:
            attributes[_FRONTEND] = ir.DictAttr.get(kept)
        else:
            del attributes[_FRONTEND]
    for of_values in ("arg_attrs", "res_attrs"):
        if of_values in attributes:
            values = [_strip_value(ir.DictAttr(value)) for value in attributes[of_values]]
            attributes[of_values] = ir.ArrayAttr.get(values)


def _strip_value(attributes: Any) -> Any:
    kept = {named.name: named.attr for named in attributes}
    if _FRONTEND in kept:
        frontend = _without_shardy(ir.DictAttr(kept.pop(_FRONTEND)))
        kept |= {_FRONTEND: ir.DictAttr.get(frontend)} if frontend else {}
    return ir.DictAttr.get(kept)


def _without_shardy(attributes: Any) -> dict[str, Any]:
    return {named.name: named.attr for named in attributes if not named.name.startswith(_SHARDY)}
