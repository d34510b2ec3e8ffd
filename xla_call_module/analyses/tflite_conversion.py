"""The known wrong results of the converter to TFLite in TensorFlow, which it makes without a word.

Each fault was seen with TensorFlow 2.21: a model that converts, runs, and computes something else.
Its cause is in the converter or in the runtime; `bridge.save_litert` writes around all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from xla_call_module.call import CallModule
from xla_call_module.stablehlo.attributes import Attributes, callee_of
from xla_call_module.stablehlo.elements import element_dtype, read_elements
from xla_call_module.stablehlo.modules import functions_of, result_number, tensor_type, walk

_BRANCHES = ("stablehlo.case", "stablehlo.if")
_LOOP = "stablehlo.while"
# The names of the functions that stand for a library of linear algebra.
_FACTORIZATIONS = "linalg_"
# The operations through which a constant reaches a comparison unchanged.
_BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
# Operations whose results are not negative.
_MAGNITUDES = ("stablehlo.abs", "stablehlo.get_dimension_size")
_SELECT = "stablehlo.select"
# Operations whose results are not negative where their operands are not.
_PRESERVING_SIGN = (
    *_BROADCASTS, "stablehlo.add", "stablehlo.concatenate", "stablehlo.convert",
    "stablehlo.divide", "stablehlo.dynamic_broadcast_in_dim", "stablehlo.maximum",
    "stablehlo.minimum", "stablehlo.multiply", "stablehlo.remainder", "stablehlo.slice", _SELECT,
)  # fmt: skip


def conversion_faults(call: CallModule, module: Any) -> tuple[str, ...]:
    """Return the names of the faults in `FAULTS` that the converter may make of a call."""
    functions = functions_of(module)
    faults = {name for operation in walk(module) for name in _faults_of(operation)}
    for loop in (operation for operation in walk(module) if operation.name == _LOOP):
        if _swaps(loop, functions):
            faults.add("swapped values")
        if any(inner.name in _BRANCHES for inner in _operations_in(loop, functions)):
            faults.add("branch in a loop")
    if call.has_platform_index and call.platforms[0] != "cpu":
        faults.add("platform")
    if any(name.startswith(_FACTORIZATIONS) for name in functions):
        faults.add("factorization")
    return tuple(name for name in FAULTS if name in faults)


def _faults_of(operation: Any) -> list[str]:
    return [name for name, is_faulty in _PREDICATES.items() if is_faulty(operation)]


def _operations_in(operation: Any, functions: Mapping[str, Any]) -> Iterator[Any]:
    """Return the operations in the regions of another one, and in the functions called there."""
    pending, called = [operation], set[str]()
    while pending:
        for region in pending.pop().regions:
            for inner in (view.operation for block in region.blocks for view in block):
                yield inner
                pending.append(inner)
                if inner.name == "func.call" and (name := callee_of(inner)) not in called:
                    called.add(name)
                    pending.append(functions[name])


def _swaps(loop: Any, functions: Mapping[str, Any]) -> bool:
    """Return whether a loop returns what it carries in another place."""
    (body,) = loop.regions[1].blocks
    *_, last = body
    places = {argument: number for number, argument in enumerate(body.arguments)}
    returned = [_before_calls(value, functions) for value in last.operands]
    return any(places.get(value, n) != n for n, value in enumerate(returned))


def _before_calls(value: Any, functions: Mapping[str, Any]) -> Any:
    """Return the operand of a call that one of its results is; another value as it is."""
    call = getattr(value.owner, "operation", None)
    if call is None or call.name != "func.call":
        return value
    (block,) = functions[callee_of(call)].regions[0].blocks
    *_, last = block
    inner = _before_calls(last.operands[result_number(value)], functions)
    arguments = list(block.arguments)
    if inner not in arguments:
        return value
    return _before_calls(call.operands[arguments.index(inner)], functions)


def _is_dilated(operation: Any) -> bool:
    if operation.name != "stablehlo.convolution":
        return False
    attributes = Attributes(operation)
    dilation = attributes.integers("lhs_dilation", (1,))
    groups = attributes.integer("batch_group_count", 1)
    return any(step != 1 for step in dilation) or groups != 1


def _is_of_infinity(operation: Any) -> bool:
    """Return whether an operation compares with an infinite constant."""
    if operation.name != "stablehlo.compare":
        return False
    return any(map(_is_infinite, operation.operands))


def _is_infinite(value: Any) -> bool:
    maker = getattr(value.owner, "operation", None)
    while maker is not None and maker.name in _BROADCASTS:
        maker = getattr(maker.operands[0].owner, "operation", None)
    if maker is None or maker.name != "stablehlo.constant":
        return False
    elements = read_elements(maker)
    return bool(elements.dtype.kind == "f" and np.isinf(elements).any())


def _is_remainder(operation: Any) -> bool:
    if operation.name != "stablehlo.remainder":
        return False
    dtype = element_dtype(tensor_type(str(operation.results[0].type)).element)
    return dtype.kind != "u" and not all(map(_is_magnitude, operation.operands))


def _is_magnitude(value: Any) -> bool:
    """Return whether no element of a value is negative, for what is computed of its operands."""
    pending, seen = [value], set[Any]()
    while pending:
        maker = getattr(pending.pop().owner, "operation", None)
        if maker is None:
            return False
        if maker.name == "stablehlo.constant":
            if (read_elements(maker) < 0).any():
                return False
        elif maker.name in _PRESERVING_SIGN:
            chosen = list(maker.operands)[1 if maker.name == _SELECT else 0 :]
            pending += [operand for operand in chosen if operand not in seen]
            seen.update(chosen)
        elif maker.name not in _MAGNITUDES:
            return False
    return True


# The faults by name: what the converter does, as a part of a sentence.
FAULTS: Mapping[str, str] = {
    "branch in a loop": "branches inside of loops take other values than theirs",
    "swapped values": "loops that pass values on to each other overwrite them",
    "factorization": "factorizations and what is solved by them are others",
    "dilated convolution": "convolutions with a dilated or grouped input are others",
    "infinity": "infinite constants become the greatest numbers",
    "remainder": "remainders have the sign of the divisor",
    "logical shift": "logical shifts to the right keep the sign",
    "platform": "the branch of the platform is not that of the CPU",
}
_PREDICATES: Mapping[str, Callable[[Any], bool]] = {
    "dilated convolution": _is_dilated,
    "infinity": _is_of_infinity,
    "remainder": _is_remainder,
    "logical shift": lambda operation: bool(operation.name == "stablehlo.shift_right_logical"),
}
