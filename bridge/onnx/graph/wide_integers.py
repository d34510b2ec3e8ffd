"""The extremes of int64, of which ONNX Runtime compares the low halves where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.dtypes import Array

_NARROW = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16"})
_EXTREMES = {"Max": "Greater", "Min": "Less"}
_INT32 = np.iinfo(np.int32)
# What only moves the elements of its first input, or of all of them; and what counts elements.
_MOVING_OPERATIONS = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
_COUNTING_OPERATIONS = frozenset({"ArgMax", "ArgMin", "NonZero", "Range", "Shape"})


@dataclass(frozen=True, slots=True)
class _FitsIn32Bits:
    """The mark of a value whose elements all fit in 32 bits."""


def remember_cast(graph: TensorGraph, value: Value, made: Value) -> None:
    """Keep that all elements of a cast value fit in 32 bits, if those of a smaller dtype were."""
    if value.dtype.name in _NARROW and made.dtype == np.int64 and made.array is None:
        _remember_narrow(graph, made)


def _remember_narrow(graph: TensorGraph, value: Value) -> None:
    """Keep that all elements of a value fit in 32 bits."""
    if graph.recall(value.name) is None:
        graph.remember(value, _FitsIn32Bits())


def fits_in_32_bits(graph: TensorGraph, value: Value) -> bool:
    """Return whether all elements of a value are known to fit in 32 bits."""
    if value.array is not None:
        return _all_fit_in_32_bits(value.array)
    if value.sizes is not None:  # those of arrays do
        return all(_INT32.min <= dim <= _INT32.max for dim in value.sizes if isinstance(dim, int))
    return _node_fits_in_32_bits(graph, value.name)


def _node_fits_in_32_bits(graph: TensorGraph, name: str) -> bool:
    if isinstance(graph.recall(name), _FitsIn32Bits):
        return True
    constant = graph.constant(name)
    if constant is not None:
        return _all_fit_in_32_bits(constant)
    node = graph.source(name)
    if node is None:
        return False
    if node.op_type == "Concat":
        return all(_node_fits_in_32_bits(graph, part) for part in node.inputs)
    return node.op_type in _COUNTING_OPERATIONS or (
        node.op_type in _MOVING_OPERATIONS and _node_fits_in_32_bits(graph, node.inputs[0])
    )


def _all_fit_in_32_bits(array: Array) -> bool:
    return bool(((array >= _INT32.min) & (array <= _INT32.max)).all())


def extreme(graph: TensorGraph, op_type: str, values: Sequence[Value]) -> Value | None:
    """Return Max or Min of int64, by Where unless the runtime compares all bits; else None."""
    if op_type not in _EXTREMES or values[0].dtype != np.int64:
        return None
    is_narrow = all(fits_in_32_bits(graph, value) for value in values)
    if not is_narrow and any(dim != 1 for value in values for dim in value.unbroadcast_shape):
        condition = nodes.elementwise(graph, _EXTREMES[op_type], *values)
        return nodes.where(graph, condition, *values)
    made = nodes.broadcasting(graph, op_type, values, values[0].dtype, {})
    if is_narrow and made.array is None:
        _remember_narrow(graph, made)
    return made
