"""Integers of 64 bits that are known to fit in 32.

ONNX Runtime 1.31 compares the low halves alone in its Min, Max and Sign of int64, unless there is
but one element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = ["fits_in_32_bits", "remember_narrow"]

_BOUNDS = np.iinfo(np.int32)
# What only moves the elements of its first input, or of all of them; and what counts elements.
_MOVING = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
_COUNTING = frozenset({"ArgMax", "ArgMin", "NonZero", "Range", "Shape"})


@dataclass(frozen=True, slots=True)
class _Narrow:
    """That a value fits."""


def remember_narrow(graph: Graph, value: Value) -> None:
    """Keep that all elements of a value fit in 32 bits."""
    if graph.recall(value.name) is None:
        graph.remember(value, _Narrow())


def fits_in_32_bits(graph: Graph, value: Value) -> bool:
    """Whether all elements of a value are known to."""
    if value.array is not None:
        return _all_fit(value.array)
    if value.sizes is not None:  # those of arrays do
        return all(_BOUNDS.min <= dim <= _BOUNDS.max for dim in value.sizes if isinstance(dim, int))
    return _fits(graph, value.name)


def _fits(graph: Graph, name: str) -> bool:
    if isinstance(graph.recall(name), _Narrow):
        return True
    constant = graph.constant(name)
    if constant is not None:
        return _all_fit(constant)
    node = graph.source(name)
    if node is None:
        return False
    if node.op_type == "Concat":
        return all(_fits(graph, part) for part in node.inputs)
    return node.op_type in _COUNTING or (node.op_type in _MOVING and _fits(graph, node.inputs[0]))


def _all_fit(array: Array) -> bool:
    return bool(((array >= _BOUNDS.min) & (array <= _BOUNDS.max)).all())
