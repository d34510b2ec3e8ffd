"""Operations that together are one kernel of LiteRT, which is right for all numbers.

Such a kernel is a composite, which `bridge.blocks.block_builder` makes an operation of.

Softmax is one: all three sets of kernels have NaN in the rows in which JAX has it. The sigmoid
stays a quotient, since XNNPACK's is NaN for numbers such as 1e38.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import Lift, LiftingRule
from bridge.lifting.reduction_primitives import reducer_of
from bridge.litert.lowering.lowered_operation import LoweredOperation, known_of, maker_of
from bridge.litert.lowering.storage_dtypes import to_storage
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.modules import tensor_type

_SOFTMAX = "jax_tf_bridge.softmax"
# The operations of blocks that composites become.
COMPOSITES = {_SOFTMAX: "softmax"}
_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")


def with_kernels(rules: Mapping[str, LiftingRule]) -> dict[str, LiftingRule]:
    """Return rules that recognize kernels."""
    name = "stablehlo.divide"
    divide = rules[name]
    return {**rules, name: LiftingRule(_with_softmax(divide.lift), divide.attributes)}


def _with_softmax(lift: Lift) -> Lift:
    def lower(op: LoweredOperation) -> Any:
        value = _softmax_operand(op)
        return lift(op) if value is None else _softmax(to_storage(op.around[value]))

    return lower


_softmax: Callable[[Any], Any] = lax.composite(
    lambda value: jax.nn.softmax(value, axis=-1), _SOFTMAX
)


def _softmax_operand(op: LoweredOperation) -> Any:
    """Return x of exp(x - max(x)) / sum(exp(x - max(x))) along the last dimension; None if not."""
    kind = tensor_type(str(op.raw.results[0].type))
    if kind.element != "f32" or not kind.shape or 0 in kind.shape:
        return None
    powers, total = op.raw.operands
    exponential = maker_of(powers)
    if exponential is None or exponential.name != "stablehlo.exponential":
        return None
    difference = maker_of(exponential.operands[0])
    if difference is None or difference.name != "stablehlo.subtract":
        return None
    value, greatest = difference.operands
    is_softmax = _is_reduced(op, total, powers, "add") and _is_reduced(
        op, greatest, value, "maximum"
    )
    return value if is_softmax else None


def _is_reduced(op: LoweredOperation, reduced: Any, value: Any, name: str) -> bool:
    """Return whether one value is another one reduced along its last dimension, and broadcast."""
    last = _rank(value) - 1
    while (maker := maker_of(reduced)) is not None and maker.name in _BROADCASTS:
        reduced = maker.operands[0]
        dimensions = [*Attributes(maker).integers("broadcast_dimensions")]
        if dimensions != [*range(_rank(reduced))] or len(dimensions) < last:
            return False
    if maker is not None and maker.name == "stablehlo.transpose":
        # Of an array with a dimension that `jax.vmap` has moved.
        order = (*Attributes(maker).integers("permutation"), last)
        of_value = maker_of(value)
        if of_value is None or of_value.name != "stablehlo.transpose":
            return False
        if tuple(Attributes(of_value).integers("permutation")) != order:
            return False
        value, maker = of_value.operands[0], maker_of(maker.operands[0])
    if maker is not None and maker.name == "stablehlo.maximum" and name == "maximum":
        # Of the least float, which JAX has for the maximum of no element.
        constant, maker = maker.operands[0], maker_of(maker.operands[1])
        if not _is_constant(op, constant, -np.inf):
            return False
    return (
        maker is not None
        and maker.name == "stablehlo.reduce"
        and len(maker.operands) == 2
        and maker.operands[0] == value
        and [*Attributes(maker).integers("dimensions")] == [last]
        and reducer_of(maker.regions[0].blocks[0]) == name
        and _is_constant(op, maker.operands[1], -np.inf if name == "maximum" else 0)
    )


def _is_constant(op: LoweredOperation, raw: Any, number: float) -> bool:
    known = known_of(raw, op.around.get(raw), op.around)
    return known is not None and bool((known == number).all())


def _rank(raw: Any) -> int:
    return len(tensor_type(str(raw.type)).shape)
