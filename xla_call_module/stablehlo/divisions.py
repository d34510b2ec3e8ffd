"""Integer divisions that can be computed at compile time, whatever they divide by.

StableHLO's folding of constants divides without looking, and the process ends with it
(stablehlo/transforms/optimization/StablehloAggressiveFolder.cpp). What XLA makes of a division by
zero is in xla/service/elemental_ir_emitter.cc: the quotient -1, and the dividend as the remainder.
"""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import ir
from xla_call_module.stablehlo.modules import walk

__all__ = ["guard_divisions"]

_DIVISIONS = frozenset({"stablehlo.divide", "stablehlo.remainder"})


def guard_divisions(module: Any) -> None:
    """Have integer divisions, in place, divide by one instead of zero, and choose XLA's result."""
    found = [op.operation for op in walk(module) if _may_divide_by_zero(op.operation)]
    for operation in found:
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
    kind = divisor.type
    truths = ir.RankedTensorType.get(
        ir.RankedTensorType(kind).shape, ir.IntegerType.get_signless(1)
    )

    def make(name: str, result: Any, *operands: Any, **attributes: Any) -> Any:
        created = ir.Operation.create(
            name, results=[result], operands=list(operands), attributes=attributes
        )
        return created.results[0]

    def equal(left: Any, right: Any) -> Any:
        direction = ir.Attribute.parse("#stablehlo<comparison_direction EQ>")
        return make("stablehlo.compare", truths, left, right, comparison_direction=direction)

    # A constant would need a shape that is known.
    zero = make("stablehlo.subtract", kind, divisor, divisor)
    one = make("stablehlo.convert", kind, equal(divisor, divisor))
    is_zero = equal(divisor, zero)
    other = make("stablehlo.select", kind, is_zero, one, divisor)
    divided = make(operation.name, kind, dividend, other)
    is_quotient = operation.name == "stablehlo.divide"
    instead = make("stablehlo.subtract", kind, zero, one) if is_quotient else dividend
    chosen = make("stablehlo.select", kind, is_zero, instead, divided)
    operation.results[0].replace_all_uses_with(chosen)
    operation.erase()
