"""Broadcasts to sizes that are known only when a model runs, left to the kernels that do them.

The converter leaves out such a broadcast of static sizes alone. It is a part of the program
`bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from litert_converter.mlir import ir
from litert_converter.mlir.dialects import stablehlo

from bridge.litert.worker.loop_outlining import nested_operations

_DYNAMIC_BROADCAST = "stablehlo.dynamic_broadcast_in_dim"
_BROADCASTS = (_DYNAMIC_BROADCAST, "stablehlo.broadcast_in_dim")
# What the kernels of all these operations take.
_MAX_RANK = 4
_ELEMENT = re.compile(r"f32|i32|i64|i1")
_OF_NUMBERS = re.compile(r"f32|i32|i64")
_OPERATIONS: Mapping[str, str] = {
    "stablehlo.add": "tfl.add",
    "stablehlo.divide": "tfl.div",
    "stablehlo.maximum": "tfl.maximum",
    "stablehlo.minimum": "tfl.minimum",
    "stablehlo.multiply": "tfl.mul",
    "stablehlo.select": "tfl.select_v2",
    "stablehlo.shift_right_arithmetic": "tfl.right_shift",
    "stablehlo.subtract": "tfl.sub",
}
_COMPARISONS: Mapping[str, str] = {
    "EQ": "tfl.equal", "GE": "tfl.greater_equal", "GT": "tfl.greater",
    "LE": "tfl.less_equal", "LT": "tfl.less", "NE": "tfl.not_equal",
}  # fmt: skip
_FUSING = ("tfl.add", "tfl.div", "tfl.mul", "tfl.sub")


def leave_out_broadcasts(module: Any) -> None:
    """Let operations on each element of dynamic arrays take operands that are not broadcast.

    The context of the module is to be the current one.
    """
    for operation in [*nested_operations(module.operation)]:
        if operation.name == _DYNAMIC_BROADCAST:
            _expand_first(operation)
            continue
        name = _kernel_of(operation)
        if not name:
            continue
        with operation.location, ir.InsertionPoint(operation):
            operands = _without_broadcasts([*operation.operands])
            if operands is None:
                continue
            attributes = (
                {"fused_activation_function": ir.StringAttr.get("NONE")} if name in _FUSING else {}
            )
            (result,) = operation.results
            made = ir.Operation.create(name, [result.type], operands, attributes)
        result.replace_all_uses_with(made.results[0])
        operation.erase()


def _expand_first(operation: Any) -> None:
    """Let a broadcast be of an array with all of its dimensions, and be none if it is that.

    The converter computes the shape of such an array by numbers of several kernels.
    """
    given, kind = operation.operands[0], ir.RankedTensorType(operation.results[0].type)
    dimensions = _dimensions(operation)
    if not dimensions or dimensions == [*range(kind.rank)]:
        return
    with operation.location, ir.InsertionPoint(operation):
        made = _expanded(given, dimensions, kind.rank)
        rank = ir.RankedTensorType(made.type).rank
        if made.type != kind:
            places = [*range(kind.rank - rank, kind.rank)]
            made = stablehlo.dynamic_broadcast_in_dim(kind, made, operation.operands[1], places)
    operation.results[0].replace_all_uses_with(made)
    operation.erase()


def _kernel_of(operation: Any) -> str:
    """Return the operation of LiteRT that broadcasts its operands; empty for none."""
    if not operation.results or operation.name not in (*_OPERATIONS, "stablehlo.compare"):
        return ""
    kind = ir.RankedTensorType(operation.results[0].type)
    if kind.has_static_shape or kind.rank > _MAX_RANK:
        return ""
    operand = ir.RankedTensorType(operation.operands[-1].type).element_type
    if operation.name == "stablehlo.compare":
        if not _OF_NUMBERS.fullmatch(str(operand)):
            return ""
        return _COMPARISONS[
            re.findall(r"[A-Z]{2}", str(operation.attributes["comparison_direction"]))[0]
        ]
    pattern = _ELEMENT if operation.name == "stablehlo.select" else _OF_NUMBERS
    return _OPERATIONS[operation.name] if pattern.fullmatch(str(operand)) else ""


def _without_broadcasts(operands: list[Any]) -> list[Any] | None:
    """Return operands of which all but one may be before their broadcast; None if none is."""
    made = [*operands]
    for number, operand in enumerate(operands):
        if sum(old is not new for old, new in zip(operands, made, strict=True)) == len(made) - 1:
            break
        made[number] = _before_broadcast(operand)
    return made if any(old is not new for old, new in zip(operands, made, strict=True)) else None


def _before_broadcast(value: Any) -> Any:
    """Return an array that kernels broadcast to a value; the value itself if there is none."""
    if isinstance(value.owner, ir.Block) or value.owner.name not in _BROADCASTS:
        return value
    rank = ir.RankedTensorType(value.type).rank
    given, dimensions = value.owner.operands[0], _dimensions(value.owner)
    return _expanded(given, dimensions, rank) if dimensions else given


def _dimensions(operation: Any) -> list[int]:
    return [*ir.DenseI64ArrayAttr(operation.attributes["broadcast_dimensions"])]


def _expanded(value: Any, dimensions: Sequence[int], rank: int) -> Any:
    """Return an array with a dimension of one element wherever a broadcast adds one behind it."""
    for dimension in range(dimensions[0], rank):
        if dimension in dimensions:
            continue
        kind = ir.RankedTensorType(value.type)
        place = dimension - dimensions[0]
        sizes = [*kind.shape[:place], 1, *kind.shape[place:]]
        axis = stablehlo.constant(ir.DenseElementsAttr.get(np.array(place, np.int32)))
        wider = ir.RankedTensorType.get(sizes, kind.element_type)
        value = ir.Operation.create("tfl.expand_dims", [wider], [value, axis]).results[0]
    return value
