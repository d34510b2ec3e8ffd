"""Operations on each element, and reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bridge.blocks.block import Operation, Value
from bridge.blocks.block_builder import number_of
from bridge.litert.emitting.block_emitter import BlockEmitter, Emit
from bridge.litert.emitting.flatbuffer_file import TYPES
from xla_call_module.size_polynomials import Shape

RELU = 1  # of `ActivationFunctionType`
_F, _NUMBERS, _ALL = "float32", "float32 int32 int64", "bool float32 int32 int64"
# The operator of each operation, and the dtypes of operands that its kernels have.
_KERNELS: Mapping[str, tuple[str, str]] = {
    "abs": ("ABS", "float32 int32"),
    "add": ("ADD", _NUMBERS),
    "and": ("STABLEHLO_AND", "int32 int64"),
    "atan2": ("ATAN2", _F),
    "ceil": ("CEIL", _F),
    "cos": ("COS", _F),
    "div": ("DIV", "float32 int32"),
    "eq": ("EQUAL", _ALL),
    "exp": ("EXP", _F),
    "floor": ("FLOOR", _F),
    "ge": ("GREATER_EQUAL", _NUMBERS),
    "gt": ("GREATER", _NUMBERS),
    "le": ("LESS_EQUAL", _NUMBERS),
    "log": ("LOG", _F),
    "logistic": ("LOGISTIC", _F),
    "lt": ("LESS", _NUMBERS),
    "max": ("MAXIMUM", _NUMBERS),
    "min": ("MINIMUM", _NUMBERS),
    "mul": ("MUL", _NUMBERS),
    "ne": ("NOT_EQUAL", _ALL),
    "neg": ("NEG", _NUMBERS),
    "not": ("LOGICAL_NOT", "bool"),
    "or": ("LOGICAL_OR", "bool"),
    "pow": ("POW", _F),
    "reduce_and": ("REDUCE_ALL", "bool"),
    "reduce_max": ("REDUCE_MAX", _NUMBERS),
    "reduce_mean": ("MEAN", _F),
    "reduce_min": ("REDUCE_MIN", _NUMBERS),
    "reduce_or": ("REDUCE_ANY", "bool"),
    "reduce_prod": ("REDUCE_PROD", _NUMBERS),
    "reduce_sum": ("SUM", _NUMBERS),
    "rem": ("FLOOR_MOD", _NUMBERS),
    "rsqrt": ("RSQRT", _F),
    "select_n": ("SELECT_V2", _ALL),
    "shift_left": ("STABLEHLO_SHIFT_LEFT", "int32"),
    "shift_right_arithmetic": ("RIGHT_SHIFT", "int32"),
    "shift_right_logical": ("RIGHT_SHIFT", "uint32"),
    "sin": ("SIN", _F),
    "softmax": ("SOFTMAX", _F),
    "sqrt": ("SQRT", _F),
    "sub": ("SUB", _NUMBERS),
    "tanh": ("TANH", _F),
    "xor": ("BITWISE_XOR", "int32"),
}
# The same of truth values, where that is another one.
_OF_BOOLS = {"and": "LOGICAL_AND", "xor": "NOT_EQUAL"}
# Up to how many dimensions kernels broadcast their operands.
_MAX_BROADCAST = 4
# The kernel of POW has finite results alone where the exponent is one number that is whole.
_NEVER_BROADCAST = ("ATAN2", "POW", "STABLEHLO_AND", "STABLEHLO_SHIFT_LEFT")


def broadcasts(name: str, dtype: np.dtype[Any], shape: Shape) -> bool:
    """Return whether the kernel of an operation broadcasts its operands to a shape."""
    kernel = _kernel_of(name, dtype)
    return kernel is not None and kernel[0] not in _NEVER_BROADCAST and len(shape) <= _MAX_BROADCAST


def _kernel_of(name: str, dtype: np.dtype[Any]) -> tuple[str, str] | None:
    """Return the operator of an operation on a dtype, and the dtypes that its kernels have."""
    if dtype == np.bool_ and name in _OF_BOOLS:
        return _OF_BOOLS[name], dtype.name
    return _KERNELS.get(name)


def operator_of(emitter: BlockEmitter, op: Operation, name: str = "") -> str:
    """Return the operator of an operation, which has a kernel for the operands."""
    dtype = op.operands[-1].dtype
    kernel = _kernel_of(name or op.name, dtype)
    assert kernel is not None, "it is in the table"
    operator, dtypes = kernel
    if dtype.name not in dtypes.split():
        emitter.refuse(op, f"LiteRT has no {operator} of {dtype.name}")
    return operator


def _elements(emitter: BlockEmitter, op: Operation) -> int:
    operands = [_broadcast(emitter, op, operand) for operand in op.operands]
    return emitter.make(operator_of(emitter, op), operands, op.result)


def _broadcast(emitter: BlockEmitter, op: Operation, operand: Value) -> int:
    """Return an operand, broadcast if the kernel does not."""
    tensor = emitter.read(operand)
    shape = op.result.shape
    if operand.shape == shape or broadcasts(op.name, operand.dtype, shape):
        return tensor
    like = Value(shape, operand.dtype)
    return emitter.make("BROADCAST_TO", [tensor, emitter.shape(shape)], like)


def _select(emitter: BlockEmitter, op: Operation) -> int:
    which, no, yes = (_broadcast(emitter, op, operand) for operand in op.operands)
    if op.operands[0].dtype != np.bool_:
        emitter.refuse(op, "it chooses by a number")
    return emitter.make(operator_of(emitter, op), [which, yes, no], op.result)


def _maximum(emitter: BlockEmitter, op: Operation) -> int:
    """Return a maximum; that of 0 is RELU, and of 0 and 6 RELU6, whose kernels keep NaN."""
    activated = activated_operand(op)
    if activated is None:
        return _elements(emitter, op)
    user = emitter.only_user(op.result)
    if user is not None and is_bounded_by_6(user, op.result):
        made = emitter.make("RELU6", [emitter.read(activated)], op.result)
        emitter.absorb(user, made)
        return made
    return emitter.make("RELU", [emitter.read(activated)], op.result)


def activated_operand(op: Operation) -> Value | None:
    """Return the operand of which an operation is the maximum with 0; None of another one."""
    if op.name != "max" or op.result.dtype != np.float32:
        return None
    left, right = op.operands
    for value, other in ((left, right), (right, left)):
        if number_of(other) == 0 and value.shape == op.result.shape and value.array is None:
            return value
    return None


def is_bounded_by_6(op: Operation, value: Value) -> bool:
    """Return whether an operation is the minimum of a value and 6."""
    if op.name != "min" or op.result.shape != value.shape:
        return False
    others = [operand for operand in op.operands if operand is not value]
    return len(others) == 1 and number_of(others[0]) == 6


def _clamp(emitter: BlockEmitter, op: Operation) -> int:
    low, value, high = op.operands
    tensors = [emitter.read(operand) for operand in (value, low, high)]
    raised = emitter.make(operator_of(emitter, op, "max"), tensors[:2], op.result)
    return emitter.make(operator_of(emitter, op, "min"), [raised, tensors[2]], op.result)


def _round(emitter: BlockEmitter, op: Operation) -> int:
    if int(op.parameters["rounding_method"]) != 1:
        emitter.refuse(op, "it rounds halves away from zero")
    return emitter.make("ROUND", [emitter.read(op.operands[0])], op.result)


def _convert(emitter: BlockEmitter, op: Operation) -> int:
    (value,), dtype = op.operands, op.result.dtype
    for name in (value.dtype.name, dtype.name):
        if name not in TYPES:
            emitter.refuse(op, f"LiteRT has no {name}")
    return emitter.cast(emitter.read(value), value, dtype)


def _bitcast(emitter: BlockEmitter, op: Operation) -> int:
    return emitter.make("BITCAST", [emitter.read(op.operands[0])], op.result)


def _reduce(emitter: BlockEmitter, op: Operation) -> int:
    (value,), axes = op.operands, op.parameters["axes"]
    tensor = emitter.read(value)
    if not axes:
        return tensor
    inputs = [tensor, emitter.ints(axes)]
    operator = operator_of(emitter, op)
    keeps = bool(op.parameters.get("keepdims"))
    return emitter.make(operator, inputs, op.result, options="ReducerOptions", keepDims=keeps)


def _arg(operator: str) -> Emit:
    def emit(emitter: BlockEmitter, op: Operation) -> int:
        (axis,) = op.parameters["axes"]
        inputs = [emitter.read(op.operands[0]), emitter.graph.constant(np.int32(axis))]
        kind = TYPES[op.result.dtype.name]
        return emitter.make(operator, inputs, op.result, outputType=kind)

    return emit


def _cumsum(emitter: BlockEmitter, op: Operation) -> int:
    inputs = [emitter.read(op.operands[0]), emitter.graph.constant(np.int32(op.parameters["axis"]))]
    return emitter.make("CUMSUM", inputs, op.result, reverse=bool(op.parameters["reverse"]))


def _top_k(emitter: BlockEmitter, op: Operation) -> list[int]:
    value, axis = op.operands[0], op.parameters["axis"]
    if axis not in (-1, value.rank - 1):
        emitter.refuse(op, "it takes the greatest elements along a dimension that is not the last")
    inputs = [emitter.read(value), emitter.size(op.parameters["k"])]
    return emitter.make_several("TOPK_V2", inputs, op.results)


def _gelu(emitter: BlockEmitter, op: Operation) -> int:
    is_approximate = op.name == "gelu"
    inputs = [emitter.read(op.operands[0])]
    return emitter.make("GELU", inputs, op.result, approximate=is_approximate)


def _rectified_sum(emitter: BlockEmitter, op: Operation) -> int:
    """Return a sum with the activation behind it, whose kernel loses NaN."""
    user = emitter.only_user(op.result)
    if user is None or activated_operand(user) is not op.result:
        return _elements(emitter, op)
    tensors = [_broadcast(emitter, op, operand) for operand in op.operands]
    made = emitter.make("ADD", tensors, user.result, fusedActivationFunction=RELU)
    emitter.absorb(user, made)
    return made


def _softmax(emitter: BlockEmitter, op: Operation) -> int:
    return emitter.make("SOFTMAX", [emitter.read(op.operands[0])], op.result, beta=1.0)


EMITTERS: Mapping[str, Emit] = {
    **{name: _reduce if name.startswith("reduce_") else _elements for name in _KERNELS},
    "argmax": _arg("ARG_MAX"),
    "argmin": _arg("ARG_MIN"),
    "bitcast_convert_type": _bitcast,
    "clamp": _clamp,
    "convert_element_type": _convert,
    "cumsum": _cumsum,
    "erf_gelu": _gelu,
    "gelu": _gelu,
    "max": _maximum,
    "round": _round,
    "select_n": _select,
    "softmax": _softmax,
    "top_k": _top_k,
}
# Of models that need not be exact.
INEXACT_EMITTERS: Mapping[str, Emit] = {"add": _rectified_sum}
