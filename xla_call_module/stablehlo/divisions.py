"""Integer divisions that can be computed at compile time, whatever they divide by.

StableHLO's folding of constants divides without looking, and the process ends with it
(stablehlo/transforms/optimization/StablehloAggressiveFolder.cpp). What XLA makes of a division by
zero is in xla/service/elemental_ir_emitter.cc: the quotient -1, and the dividend as the remainder.
"""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import ir, stablehlo
from xla_call_module.stablehlo.modules import walk
from xla_call_module.stablehlo.rewriting import replace_operation

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
