"""The converter's wrong results, kept from it before its passes and mended after them.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

from litert_converter.mlir import ir

from bridge.litert.worker.loop_outlining import nested_operations

# Operations whose operands must not be exchanged.
_ORDERED = frozenset({"stablehlo.divide", "stablehlo.subtract"})
# Operations that stay, which are no broadcasts.
_NEVER_BROADCAST = frozenset({
    "stablehlo.constant", "stablehlo.convolution", "stablehlo.dot_general", "stablehlo.transpose",
    "tfl.batch_matmul",
})  # fmt: skip
# Constants, and what repeats them.
_CONSTANT = frozenset({
    "stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.reshape",
})  # fmt: skip
# Types whose dtypes few kernels have.
_NARROW = re.compile(r"x?(?:b?f16|u?i8|u?i16|ui32)>")
_BARRIER = "stablehlo.optimization_barrier"
_SCATTER = "stablehlo.scatter"
# The operations that the kernel of a scatter knows, by what the converter makes of them.
_COMBINED: Mapping[str, str] = {
    "tfl.add": "stablehlo.add",
    "tfl.maximum": "stablehlo.maximum",
    "tfl.minimum": "stablehlo.minimum",
    "tfl.mul": "stablehlo.multiply",
}


def prevent_misreadings(module: Any) -> None:
    """Put barriers between operations of a module that the converter makes wrong ones of.

    It does not look through barriers, and removes them later. Of a difference or a quotient of a
    constant and a transposed array it transposes the result, and exchanges the operands by the way:
    it makes `transpose(x - 1)` of `1 - transpose(x)`. The context of the module is to be the
    current one.
    """
    functions = {ir.StringAttr(one.attributes["sym_name"]).value: one for one in module.body}
    callers: dict[str, set[str]] = {name: set() for name in functions}
    for name, function in functions.items():
        for call in nested_operations(function.operation):
            if call.name == "func.call":
                callers[_callee(call)].add(name)
    passed: dict[str, set[int]] = {name: set() for name in functions}
    for name in TopologicalSorter(callers).static_order():
        function = functions[name]
        for region in function.regions:
            arguments = region.blocks[0].arguments
            if not callers[name] and not _is_public(function):  # such as a reducer
                passed[name].update(range(len(arguments)))
            _keep_in(region, {arguments[number] for number in passed[name]}, passed)


def _callee(call: Any) -> str:
    name: str = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    return name


def _is_public(function: Any) -> bool:
    """Return whether a function is said to be public, as that of a signature is."""
    visibility = "sym_visibility"
    has_one = visibility in function.attributes
    return has_one and ir.StringAttr(function.attributes[visibility]).value == "public"


def _keep_in(region: Any, constants: set[Any], passed: Mapping[str, set[int]]) -> None:
    """Put barriers in a region."""
    for block in region:
        for view in list(block):
            operation = view.operation
            for inner in operation.regions:
                for arguments in (one.arguments for one in inner):
                    constants.update(arguments)
                _keep_in(inner, constants, passed)
            if operation.name == "func.call":
                given = enumerate(operation.operands)
                passed[_callee(operation)].update(n for n, value in given if value in constants)
            _keep_apart(operation, constants)


def _keep_apart(operation: Any, constants: set[Any]) -> None:
    """Put barriers before operands of an operation, and add its results if they are constants."""
    if operation.name == "stablehlo.multiply":
        operation = _without_zero(operation)
    if operation.name in _ORDERED and operation.operands[0] in constants:
        _put_barrier(operation, 1)
    for number, operand in enumerate(operation.operands):
        if _is_misread(operation, operand):
            _put_barrier(operation, number)
    # Kernels broadcast to sizes that are not known, so that a constant stays one.
    is_repeated = operation.name == "stablehlo.dynamic_broadcast_in_dim"
    read = [*operation.operands][:1] if is_repeated else operation.operands
    if not operation.regions and all(value in constants for value in read):
        constants.update(operation.results)


def _is_misread(operation: Any, operand: Any) -> bool:
    """Return whether the converter makes one wrong operation of two."""
    if isinstance(operand.owner, ir.Block):
        return False
    maker = operand.owner.name
    if operation.name == "stablehlo.transpose":
        # Of a broadcast that is transposed, maybe after operations that it leaves out, it makes a
        # broadcast, of which it takes the dimensions to be in their order.
        return maker not in _NEVER_BROADCAST
    if operation.name == "stablehlo.compare" and maker == "stablehlo.convert":
        # It compares the booleans themselves, and has no zeros of these.
        return "i1" in str(operand.owner.operands[0].type)
    if operation.name == "stablehlo.divide" and maker in _CONSTANT:
        # It multiplies by the reciprocal 0 instead, and takes that for 0 as it does any such.
        return operand == operation.operands[1] and abs(_only_element(operand) or 0) == math.inf
    if operation.name == "stablehlo.dot_general":
        # Of a transposed left matrix it forgets that where it finds the right one to be transposed
        # only after others of its passes.
        is_matrix = ir.RankedTensorType(operand.type).rank == 2
        return bool(operand == operation.operands[0] and is_matrix)
    if operation.name == "stablehlo.power":
        # It makes a root of it, which differs at -inf, or one of its own of which that of 0 is NaN.
        return maker in _CONSTANT and operand == operation.operands[1]
    if operation.name == "stablehlo.convert":
        # It converts before what makes the operand, of which it may have none for the dtype.
        return maker != "stablehlo.constant" and bool(
            _NARROW.search(str(operation.results[0].type))
        )
    return False


def _without_zero(product: Any) -> Any:
    """Return a product, and of a product with 0 the difference of the other operand and itself.

    The converter takes such a product for 0, which that with NaN or infinity is not, and makes
    a constant without elements of it where its size is known only when a model runs.
    """
    for zero, other in ((0, 1), (1, 0)):
        if _is_zero(product.operands[zero]):
            return _replaced(product, "stablehlo.subtract", [product.operands[other]] * 2)
    return product


def _replaced(operation: Any, name: str, operands: Sequence[Any]) -> Any:
    """Return the operation of another name that is put in the place of one, with its types."""
    types = [result.type for result in operation.results]
    with ir.InsertionPoint(operation), operation.location:
        new = ir.Operation.create(name, results=types, operands=[*operands])
    for old, result in zip(operation.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    operation.erase()
    return new


def _is_zero(value: Any) -> bool:
    """Return whether a value is a constant whose only element is 0."""
    return _only_element(value) == 0


def _only_element(value: Any) -> float | None:
    """Return the number that a constant is, or repeats; None of another value."""
    while not isinstance(value.owner, ir.Block):
        if value.owner.name == "stablehlo.constant":
            elements = ir.DenseElementsAttr(value.owner.attributes["value"])
            if not elements.is_splat:
                return None
            number = elements.get_splat_value()
            is_number = isinstance(number, ir.FloatAttr | ir.IntegerAttr)
            return float(number.value) if is_number else None
        if value.owner.name not in _CONSTANT:
            return None
        value = value.owner.operands[0]
    return None


def _put_barrier(operation: Any, number: int) -> None:
    """Put a barrier before one operand of an operation."""
    value = operation.operands[number]
    with ir.InsertionPoint(operation), operation.location:
        barrier = ir.Operation.create(_BARRIER, results=[value.type], operands=[value])
    operation.operands[number] = barrier.results[0]


def restore_scatter_regions(module: Any) -> None:
    """Let the regions of every scatter of a converted module have operations of StableHLO.

    The kernel looks at the only operation of the region, and knows none of LiteRT
    (`tflite/kernels/stablehlo_scatter.cc`). The context of the module is to be the current one.
    """
    for inner in list(_in_scatters(module)):
        if inner.name in _COMBINED:
            _replaced(inner, _COMBINED[inner.name], inner.operands)


def _in_scatters(module: Any) -> Iterator[Any]:
    for operation in nested_operations(module.operation):
        if operation.name == _SCATTER:
            yield from nested_operations(operation)
