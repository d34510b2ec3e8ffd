"""The pass that lets NVIDIA GPUs compute products of int8 in int32.

XLA computes `stablehlo.dot_general` of int8 with a result of int32 twice too large there where a
size is no multiple of 4, since it pads the operands for cuBLAS. JAX 0.11.2 and TensorFlow 2.21 do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.analyses.branches import operations_on
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import tensor_type, walk

_PRODUCT = "stablehlo.dot_general"
_CUDA = "cuda"
_MULTIPLE = 4


def _violation(parsed: ParsedCall) -> str:
    return "a product of int8 runs on NVIDIA GPUs" if any(_products(parsed)) else ""


def _products(parsed: ParsedCall) -> Iterator[Any]:
    """Yield the products that XLA pads on NVIDIA GPUs, and that no other platform runs."""
    platforms, module = parsed.call.platforms, parsed.module
    padded = [operation for operation in walk(module) if _is_padded(operation)]
    if _CUDA not in platforms or not padded:
        return
    elsewhere: set[Any] = set()
    if len(platforms) > 1:
        indices = [n for n, platform in enumerate(platforms) if platform != _CUDA]
        elsewhere = {op for index in indices for op in operations_on(module, index)}
    yield from (operation for operation in padded if operation not in elsewhere)


def _is_padded(operation: Any) -> bool:
    if operation.name != _PRODUCT:
        return False
    values = (*operation.operands, operation.results[0])
    left, right, result = (tensor_type(str(value.type)) for value in values)
    if (left.element, right.element, result.element) != ("i8", "i8", "i32"):
        return False
    numbers = Attributes(operation).dimension_numbers()
    contracted, batch = numbers.lhs_contracting_dimensions, numbers.lhs_batching_dimensions
    others = (*numbers.rhs_contracting_dimensions, *numbers.rhs_batching_dimensions)
    rows = _size(left.shape, without=(*contracted, *batch))
    inner = math.prod(left.shape[axis] or 1 for axis in contracted)
    return any(size % _MULTIPLE for size in (rows, inner, _size(right.shape, without=others)))


def _size(shape: Sequence[int | None], *, without: Sequence[int]) -> int:
    """Return a divisor of the number of elements along the other axes: unknown sizes count as 1."""
    return math.prod(size or 1 for axis, size in enumerate(shape) if axis not in without)


def _widen(parsed: ParsedCall) -> ParsedCall:
    for product in list(_products(parsed)):
        with product.context, product.location, ir.InsertionPoint(product):
            for index, operand in enumerate(product.operands):
                shape = ir.RankedTensorType(operand.type).shape
                wide = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
                made = ir.Operation.create("stablehlo.convert", results=[wide], operands=[operand])
                product.operands[index] = made.results[0]
    return parsed.rewritten("products of int8 in int32 for NVIDIA GPUs")


# Where another platform runs the same operation it stays as it is: CPUs need 4 to 7 times as long
# for a product of int32. What JAX lowers for several platforms has one for each of them.
WIDEN_INT8_PRODUCTS = ModulePass(
    name="int8_products",
    ensures="NVIDIA GPUs compute no product of int8 that XLA pads for them",
    violation=_violation,
    rewrite=_widen,
    requires=("platforms", "linear_algebra"),
    may_apply=lambda call: _CUDA in call.platforms and mentions(call.module, [b"dot_general"]),
)
