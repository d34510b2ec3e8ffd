"""Operations that together are one kernel of LiteRT, which is right for all numbers.

Such a kernel is a composite, which `bridge.blocks.block_builder` makes an operation of.

Softmax is one: all three sets of kernels have NaN in the rows in which JAX has it. The logistic
function is one, and GELU by the error function, only where a model need not be exact: that of
XNNPACK is NaN for numbers such as 1e38, and GELU is 0 for small results.
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

_SOFTMAX, _GELU = "jax_tf_bridge.softmax", "jax_tf_bridge.gelu"
# The operations of blocks that composites become.
COMPOSITES = {_SOFTMAX: "softmax", _GELU: "erf_gelu"}
_SQRT_HALF = float(np.float32(np.sqrt(0.5)))
_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")


def with_kernels(rules: Mapping[str, LiftingRule]) -> dict[str, LiftingRule]:
    """Return rules that recognize kernels."""
    around = {"stablehlo.divide": _quotient, "stablehlo.multiply": _product}
    return {
        **rules,
        **{
            name: LiftingRule(with_kernel(rules[name].lift), rules[name].attributes)
            for name, with_kernel in around.items()
        },
    }


def _quotient(lift: Lift) -> Lift:
    def lower(op: LoweredOperation) -> Any:
        if (value := _softmax_operand(op)) is not None:
            return _softmax(to_storage(op.around[value]))
        if not op.exact and (value := _logistic_operand(op)) is not None:
            return lax.logistic(to_storage(op.around[value]))
        return lift(op)

    return lower


def _product(lift: Lift) -> Lift:
    def lower(op: LoweredOperation) -> Any:
        if not op.exact and (value := _gelu_operand(op)) is not None:
            return _gelu(to_storage(op.around[value]))
        return lift(op)

    return lower


_softmax: Callable[[Any], Any] = lax.composite(
    lambda value: jax.nn.softmax(value, axis=-1), _SOFTMAX
)
_gelu: Callable[[Any], Any] = lax.composite(
    lambda value: jax.nn.gelu(value, approximate=False), _GELU
)


def _logistic_operand(op: LoweredOperation) -> Any:
    """Return x of 1 / (1 + exp(-x)); None if it is another quotient."""
    one, total = op.raw.operands
    if not _is_float32(op) or not _is_constant(op, one, 1):
        return None
    powers = _beside(op, total, "add", 1)
    return None if powers is None else _operand(_operand(powers, "exponential"), "negate")


def _gelu_operand(op: LoweredOperation) -> Any:
    """Return x of x / 2 * erfc(-x / sqrt(2)); None if it is another product."""
    if not _is_float32(op):
        return None
    left, right = op.raw.operands
    for half, tail in ((left, right), (right, left)):
        maker = maker_of(tail)
        if maker is None or maker.name != "stablehlo.composite":
            continue
        if Attributes(maker).text("name") != "chlo.erfc":
            continue
        scaled = _beside(op, maker.operands[0], "multiply", _SQRT_HALF)
        value = _operand(scaled, "negate")
        halved = _beside(op, half, "multiply", 0.5)
        # A value of MLIR compares with no None.
        if value is not None and halved is not None and halved == value:
            return value
    return None


def _is_float32(op: LoweredOperation) -> bool:
    return tensor_type(str(op.raw.results[0].type)).element == "f32"


def _operand(raw: Any, name: str) -> Any:
    """Return the operand of the operation of a name that makes a value; None of another one."""
    maker: Any = None if raw is None else maker_of(raw)
    if maker is None or maker.name != f"stablehlo.{name}":
        return None
    return maker.operands[0]


def _beside(op: LoweredOperation, raw: Any, name: str, number: float) -> Any:
    """Return the operand beside a constant in the operation that makes a value; None if none is."""
    maker = maker_of(raw)
    if maker is None or maker.name != f"stablehlo.{name}":
        return None
    left, right = maker.operands
    pairs = ((left, right), (right, left))
    return next((other for one, other in pairs if _is_constant(op, one, number)), None)


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
