"""The wrong results of the converter to TFLite in TensorFlow, kept from it by other operations.

Each was seen with TensorFlow 2.21. Those of litert-converter are kept from that in its own process,
by `bridge.litert.worker.conversion_corrections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from xla_call_module._jax import ir
from xla_call_module.stablehlo.elements import read_elements, read_splat, repeated_number
from xla_call_module.stablehlo.modules import find_main, functions_of, result_number, walk

__all__ = ["prevent_misreadings"]

# Operations whose operands must not be exchanged.
_ORDERED = frozenset({"stablehlo.divide", "stablehlo.subtract"})
# Operations that make infinities of few finite numbers, among them of ordinary ones.
_UNBOUNDED = frozenset(
    {
        "stablehlo.divide",
        "stablehlo.exponential",
        "stablehlo.exponential_minus_one",
        "stablehlo.log",
        "stablehlo.log_plus_one",
        "stablehlo.power",
        "stablehlo.rsqrt",
    }
)
# The greatest number that is added to a variance, so that the inverse of its root is finite.
_MAX_EPSILON = 0.1
# Operations whose initial values have kernels of their own, and so stay constants.
_REDUCTIONS = frozenset({"stablehlo.reduce", "stablehlo.reduce_window"})
_BARRIER = "stablehlo.optimization_barrier"
_BITCAST = "stablehlo.bitcast_convert"
_BROADCASTS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
_CONSTANT = "stablehlo.constant"
_CONVERT = "stablehlo.convert"
_LOOP = "stablehlo.while"
_PRODUCT = "stablehlo.multiply"
_ROOTS = frozenset({"stablehlo.rsqrt", "stablehlo.sqrt"})


def prevent_misreadings(module: Any, parameters: int) -> None:
    """Rewrite the operations of a parsed module that the converter makes wrong ones of, in place.

    Args:
        module: the module.
        parameters: how many of the first arguments of `main` are variables, which become constants.
    """
    main = find_main(module)
    with module.context, ir.Location.unknown():
        for operation in list(walk(module)):
            if operation.name == _CONSTANT:
                _hide(operation)
            elif operation.name == _LOOP:
                _copy_passed_on(operation)
        for function in functions_of(module).values():
            (block,) = function.regions[0].blocks
            arguments = list(block.arguments)
            count = parameters if function == main else len(arguments)
            _separate(block, set(arguments[:count]))


def _hide(constant: Any) -> None:
    """Let a constant be made of integers at run time where the converter would compute with it.

    It makes the greatest numbers of infinities, which the inverse of a divisor can be, too; and 0
    of every product with 0, which that with NaN or infinity is not. It leaves `bitcast_convert`.
    """
    elements = read_elements(constant)
    if elements.dtype != np.float32 or not elements.size:
        return
    misread = {
        *([_PRODUCT] if not elements.any() else []),
        *(["stablehlo.divide"] if (np.abs(elements) < np.finfo(np.float32).tiny).any() else []),
    }
    is_infinite = bool(np.isinf(elements).any())
    results = constant.results[0]
    uses = [use for use in results.uses if _is_misread(use, None if is_infinite else misread)]
    if not uses:
        return
    kind = ir.RankedTensorType(results.type)
    integer = ir.IntegerType.get_signless(32)
    integers = ir.RankedTensorType.get(kind.shape, integer)
    bits: Any = np.array(elements).view(np.int32)
    with constant.location, ir.InsertionPoint(constant):
        if read_splat(constant) is None:
            value = ir.DenseElementsAttr.get(bits)
        else:
            number = ir.IntegerAttr.get(integer, int(bits.flat[0]))
            value = ir.DenseElementsAttr.get_splat(integers, number)
        made = ir.Operation.create(_CONSTANT, [integers], attributes={"value": value})
        hidden = ir.Operation.create(_BITCAST, [kind], [made.results[0]])
    for use in uses:
        use.owner.operands[use.operand_number] = hidden.results[0]


def _is_misread(use: Any, names: Collection[str] | None) -> bool:
    """Return whether an operation uses a constant that is to be hidden from the converter.

    Args:
        use: the use, maybe of what repeats the constant.
        names: the operations that it is hidden from; None for all but the start of a reduction.
    """
    operation = use.owner.operation
    if names is None:
        is_first = use.operand_number < len(operation.operands) // 2
        return operation.name not in _REDUCTIONS or is_first
    if operation.name in _BROADCASTS:
        return any(_is_misread(one, names) for one in operation.results[0].uses)
    return operation.name in names


def _copy_passed_on(loop: Any) -> None:
    """Let a loop return copies of what it carries in other places.

    The runtime assigns what a loop returns one after another, so that a value which was not
    computed is overwritten before it is read.
    """
    (body,) = loop.regions[1].blocks
    *_, last = body
    for place, value in enumerate(last.operands):
        passed = _passed_on(value)
        if passed in list(body.arguments) and passed.arg_number != place:
            with last.location, ir.InsertionPoint(last):
                last.operation.operands[place] = _copy_of(value)


def _passed_on(value: Any) -> Any:
    """Return the value that another one may be, once what changes nothing is left out."""
    while (maker := _maker(value)) is not None:
        operands = list(maker.operands)
        if maker.name == _LOOP:
            (body,) = maker.regions[1].blocks
            *_, last = body
            number = result_number(value)
            if last.operands[number] != body.arguments[number]:
                break
            value = operands[number]
            continue
        if maker.name == _BARRIER:
            value = operands[result_number(value)]
            continue
        computed = {operand for operand in operands if not _is_constant(operand)}
        if len(computed) != 1 or len(maker.results) != 1 or len(maker.regions):
            break
        (value,) = computed
    return value


def _is_constant(value: Any) -> bool:
    """Return whether a value is a constant, or one that is repeated or hidden."""
    maker = _maker(value)
    while maker is not None and maker.name in (*_BROADCASTS, _BITCAST):
        maker = _maker(maker.operands[0])
    return maker is not None and bool(maker.name == _CONSTANT)


def _copy_of(value: Any) -> Any:
    """Return a copy, made at the current insertion point."""
    own = str(element := ir.RankedTensorType(value.type).element_type)
    integer, real = ir.IntegerType.get_signless(32), ir.F32Type.get()
    wide = ir.F64Type.get()
    others = {"f32": integer, "i32": real, "i64": wide, "ui32": real, "ui64": wide}
    if own in others:
        return _made(_BITCAST, _made(_BITCAST, value, others[own]), element)
    # A number of fewer bits.
    wider = _made(_CONVERT, value, real if "f" in own else integer)
    return _made(_CONVERT, _copy_of(wider), element)


def _made(name: str, value: Any, element: Any) -> Any:
    """Return the result of an operation with one operand, in another element type."""
    given = ir.RankedTensorType(value.type)
    kind = ir.RankedTensorType.get(given.shape, element)
    return ir.Operation.create(name, [kind], [value]).results[0]


def _separate(block: Any, constants: set[Any]) -> None:
    """Put copies in a block, which the converter does not look through.

    Of a difference or a quotient of a constant and a transposed array it transposes the result, and
    exchanges the operands by the way: it makes `transpose(x - 1)` of `1 - transpose(x)`. Of a
    broadcast that is transposed it makes one with its dimensions in order. And it computes what
    depends on constants alone, the inverse of a divisor, too, and makes the greatest numbers of the
    infinities among these.

    Args:
        block: the block.
        constants: the values around it that can become constants; those of the block are added.
    """
    for view in list(block):
        operation = view.operation
        for inner in _blocks(operation):
            constants.update(inner.arguments)
            _separate(inner, constants)
        if operation.name in _ORDERED and operation.operands[0] in constants:
            # Sizes are no matrices, and computed before the module runs.
            if ir.RankedTensorType(operation.results[0].type).rank > 1:
                _copy_operand(operation)
        elif operation.name == "stablehlo.transpose" and _is_broadcast(operation.operands[0]):
            _copy_operand(operation)
        if _is_computed_with(operation, constants):
            _copy_operand(operation, len(operation.operands) - 1)
        if all(value in constants for value in operation.operands):
            constants.update(operation.results)


def _is_computed_with(operation: Any, constants: Collection[Any]) -> bool:
    """Return whether the converter would compute with an operand, and make infinities of it."""
    if operation.name not in _UNBOUNDED or _is_inverse_deviation(operation):
        return False
    divides = operation.name == "stablehlo.divide" and not _is_constant(operation.operands[1])
    needed = list(operation.operands)[-1:] if divides else list(operation.operands)
    kind = ir.RankedTensorType(operation.results[0].type)
    return isinstance(kind.element_type, ir.F32Type) and all(one in constants for one in needed)


def _is_inverse_deviation(operation: Any) -> bool:
    """Return whether an operation divides by the root of a variance and a small number.

    The converter may fold it into the weights of a convolution. Its root may be one of a multiple.
    """
    value, is_root = operation.operands[-1], operation.name in _ROOTS
    while (maker := _maker(value)) is not None and maker.name in (*_BROADCASTS, *_ROOTS, _PRODUCT):
        is_root |= maker.name in _ROOTS
        value, *factors = maker.operands
        if not all(map(repeated_number, factors)):
            return False
    if not is_root or maker is None or maker.name != "stablehlo.add":
        return False
    numbers = map(repeated_number, maker.operands)
    return any(number is not None and 0 < number <= _MAX_EPSILON for number in numbers)


def _copy_operand(operation: Any, place: int = 0) -> None:
    """Let an operation take a copy of an operand, made before that is repeated."""
    while (maker := _maker(operation.operands[place])) is not None and maker.name in _BROADCASTS:
        if operation.name == "stablehlo.transpose":
            break
        operation, place = maker, 0
    with operation.location, ir.InsertionPoint(operation):
        operation.operands[place] = _copy_of(operation.operands[place])


def _is_broadcast(value: Any) -> bool:
    """Return whether a value is a broadcast, once what changes nothing is left out."""
    while (maker := _maker(value)) is not None:
        if maker.name.endswith("broadcast_in_dim"):
            return True
        computed = {operand for operand in maker.operands if not _is_constant(operand)}
        if len(computed) != 1 or len(maker.regions):
            return False
        (value,) = computed
    return False


def _blocks(operation: Any) -> Iterator[Any]:
    return (block for region in operation.regions for block in region.blocks)


def _maker(value: Any) -> Any:
    """Return the operation that makes a value; None of an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation
