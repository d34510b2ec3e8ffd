"""Gelu by its definition: a number times how likely a standard normal number is to be smaller.

JAX lowers the error function's complement to dozens of operations, which differ from version to
version. So it is found by what they compute, and not by how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.onnx.graph.graph_builder import Graph, Node
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = ["fuse_gelu"]

_FIRST_WITH_GELU = 20
_MOST_NODES = 100
# Both branches of the expansion, where they meet, and where nothing is left of the tail.
_POINTS = np.concatenate([np.linspace(-16, 16, 401), [-1e3, 1e3], np.linspace(-2, 2, 97)])
_SMALLER = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in _POINTS])
# Of the chance, and relative to it where it is not too small for that: as far as JAX itself is off.
_TOLERANCE = (2e-5, 1e-12)
_TOLERANCE_OF_SUM = (0.0, 3e-7)

_Compute = Callable[..., Any]
_COMPUTE: Mapping[str, _Compute] = {
    "Abs": np.abs,
    "Add": np.add,
    "Div": np.divide,
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
    "Exp": np.exp,
    "Greater": np.greater,
    "Less": np.less,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Sub": np.subtract,
    "Where": np.where,
}


def fuse_gelu(graph: Graph, left: Value, right: Value) -> Value | None:
    """Gelu for a product of a number, or half of it, and what makes Gelu of it.

    The runtime's is as precise as a sum of 1 and the error function: its error is relative to the
    number, and not to what is left of it far below zero.
    """
    if graph.opset < _FIRST_WITH_GELU or left.dtype != np.float32:
        return None
    for one, other in ((left, right), (right, left)):
        node = graph.producer(other)
        if node is None or not one.is_whole or not _may_be_chance(graph, node):
            continue
        half = _half_of(graph, one.name)
        for name, factor in ((one.name, 1.0), *([(half, 0.5)] if half else [])):
            if _is_chance(graph, other.name, name, factor, exact=node.op_type == "Where"):
                given = Value(one.dtype, one.shape, one.shape, name)
                return graph.node("Gelu", [given], shape=one.shape)
    return None


def _may_be_chance(graph: Graph, node: Node) -> bool:
    """Whether it ends as the error function's complement does, or a sum with that function."""
    if node.op_type == "Where":
        return True
    sources = [graph.source(name) for name in node.inputs]
    names = {source.op_type for source in sources if source is not None}
    return (node.op_type == "Add" and "Erf" in names) or (node.op_type == "Mul" and "Add" in names)


def _number(graph: Graph, name: str) -> Array | None:
    array = graph.constant(name)
    return array.reshape(()) if array is not None and array.size == 1 else None


def _half_of(graph: Graph, name: str) -> str | None:
    node = graph.source(name)
    for place, other in enumerate(node.inputs if node and node.op_type == "Mul" else ()):
        number = _number(graph, other)
        if node is not None and number is not None and number == 0.5:
            return node.inputs[1 - place]
    return None


def _is_chance(graph: Graph, name: str, base: str, factor: float, *, exact: bool) -> bool:
    """Whether a value is the chance times a factor, as a function of another value alone."""
    known: dict[str, Any] = {base: _POINTS}
    with np.errstate(all="ignore"):
        found = _evaluate(graph, name, known)
    if found is None:
        return False
    rtol, atol = _TOLERANCE if exact else _TOLERANCE_OF_SUM
    return bool(np.allclose(np.asarray(found) * factor, _SMALLER, rtol=rtol, atol=atol))


def _evaluate(graph: Graph, name: str, known: dict[str, Any]) -> Any:
    """What a value is at the points; None where it depends on anything else."""
    if name in known:
        return known[name]
    if len(known) > _MOST_NODES:
        return None
    found = _number(graph, name)
    node = graph.source(name)
    if node is not None and node.op_type in _COMPUTE:
        operands = [_evaluate(graph, operand, known) for operand in node.inputs]
        if not any(operand is None for operand in operands):
            found = _COMPUTE[node.op_type](*operands)
    known[name] = found
    return found
