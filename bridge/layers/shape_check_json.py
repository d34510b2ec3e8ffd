"""`ShapeCheck` <-> JSON, and a call <-> the bytes of its node, for the config of a layer."""

from __future__ import annotations

import base64
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel.protos.schema import NodeDef
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule
from xla_call_module.dtypes import DType, dtype_from_name
from xla_call_module.errors import FormatError
from xla_call_module.node import decode_node, encode_node
from xla_call_module.shape_checks import (
    OperandSize,
    ScalarConstant,
    ScalarOperation,
    ShapeCheck,
    Step,
)

_WHERE = "A shape check of an ExportedLayer"
# The dtypes of scalars, with the first number that is too large for each.
_TOO_LARGE = {"bool": 2, "int32": 1 << 31, "int64": 1 << 63}


def encode_call(call: CallModule) -> bytes:
    """Return the node of a call."""
    node: Any = encode_node(
        call, name=call.name, inputs=[""] * len(call.operands), new_node=NodeDef
    )
    return bytes(node.SerializeToString(deterministic=True))


def decode_call(data: bytes, allowance: Allowance) -> CallModule:
    """Return the call that `encode_call` wrote."""
    node = NodeDef()
    try:
        node.ParseFromString(data)
    except DecodeError as error:
        raise FormatError(f"An ExportedLayer has a node that is not a NodeDef: {error}.") from error
    return decode_node(node, allowance=allowance)


def encode_shape_check(check: ShapeCheck) -> dict[str, Any]:
    """Return a JSON object that `decode_shape_check` reads."""
    return {
        "node": base64.b64encode(encode_call(check.call)).decode(),
        "kept": list(check.kept),
        "steps": list(map(_encode_step, check.steps)),
    }


def decode_shape_check(fields: Mapping[str, Any], allowance: Allowance) -> ShapeCheck:
    """Return the check that `encode_shape_check` wrote."""
    call = decode_call(base64.b64decode(fields["node"], validate=True), allowance)
    steps = tuple(map(_decode_step, fields["steps"]))
    kept = tuple(map(operator.index, fields["kept"]))
    _check_steps(call, steps)
    return ShapeCheck(call, kept, steps)


def _encode_step(step: Step) -> list[Any]:
    match step:
        case OperandSize(operand, axis):
            return ["size", operand, axis]
        case ScalarConstant(value, dtype):
            return ["constant", value, dtype.name]
        case ScalarOperation(op, inputs, taken, dtype):
            return [op, list(inputs), taken.name, dtype.name]


def _decode_step(fields: Sequence[Any]) -> Step:
    match fields:
        case ["size", operand, axis]:
            return OperandSize(operator.index(operand), operator.index(axis))
        case ["constant", value, dtype]:
            constant = ScalarConstant(operator.index(value), _decode_dtype(dtype))
            limit = _TOO_LARGE[constant.dtype.name]
            if -limit <= constant.value < limit:
                return constant
        case [str(op), inputs, taken, dtype]:
            numbers = tuple(map(operator.index, inputs))
            return ScalarOperation(op, numbers, _decode_dtype(taken), _decode_dtype(dtype))
    raise FormatError(f"{_WHERE} has the step {str(fields)[:200]}.")


def _decode_dtype(name: object) -> DType:
    if name not in _TOO_LARGE:
        raise FormatError(f"{_WHERE} has a scalar of the dtype {str(name)[:80]!r}.")
    return dtype_from_name(str(name), where=_WHERE)


def _check_steps(call: CallModule, steps: Sequence[Step]) -> None:
    """Refuse steps that take what is not there."""
    specs = call.operands
    for number, step in enumerate(steps):
        if isinstance(step, OperandSize):
            is_there = 0 <= step.operand < len(specs)
            fits = is_there and 0 <= step.axis < len(specs[step.operand].shape or ())
        else:
            inputs = step.inputs if isinstance(step, ScalarOperation) else ()
            fits = all(0 <= index < number for index in inputs)
        if not fits:
            raise FormatError(f"{_WHERE} has the step {step}, which takes what is not there.")
    last = steps[-1] if steps else None
    if call.results or not isinstance(last, ScalarOperation) or last.dtype.name != "bool":
        raise FormatError(f"{_WHERE} has {len(steps)} steps, of which the last one says nothing.")
