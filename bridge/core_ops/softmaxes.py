"""Softmax and LogSoftmax, which end in a quotient and in a difference.

They are found while the graph is built, by what the operands of the last operation come from; what
nobody uses any more then is left out in the end. Those of 16 bits are not: each step is rounded
there, which one operation for all of them does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value


@dataclass(frozen=True, slots=True)
class Reduction:
    """The fact that a value is a reduction of another one.

    Attributes:
        reducer: the kind of reduction, such as `add`.
        name: the name of the other value in the graph.
        shape: the shape of the other value.
        axes: the axes that were reduced.
    """

    reducer: str
    name: str
    shape: tuple[object, ...]
    axes: tuple[int, ...]


def fuse_softmax(graph: TensorGraph, dividend: Value, divisor: Value) -> Value | None:
    """Return Softmax, which ends in a division; None for other quotients."""
    total = _reduced(graph, divisor.name, "add")
    if total is None or total.name != dividend.name or not dividend.is_expanded:
        return None
    return _normalized(graph, "Softmax", dividend, operand_of(graph, dividend.name, "Exp"), total)


def _normalized(
    graph: TensorGraph, op_type: str, like: Value, shifted: str, total: Reduction
) -> Value | None:
    """Return Softmax or LogSoftmax of a value that was shifted by its greatest element."""
    difference = graph.source(shifted, "Sub")
    if difference is None or like.dtype.name not in ("float32", "float64"):
        return None
    name, shift = difference.inputs
    most = _reduced(graph, shift, "maximum")
    if most is None or (most.name, most.axes, most.shape) != (name, total.axes, like.shape):
        return None
    return graph.node(op_type, [value_like(like, name)], shape=like.shape, axis=total.axes[0])


def fuse_log_softmax(graph: TensorGraph, left: Value, right: Value) -> Value | None:
    """Return LogSoftmax, which ends in a difference; None for other differences."""
    total = _reduced(graph, operand_of(graph, right.name, "Log"), "add")
    if total is None or not left.is_expanded or operand_of(graph, total.name, "Exp") != left.name:
        return None
    return _normalized(graph, "LogSoftmax", left, left.name, total)


def operand_of(graph: TensorGraph, name: str, op_type: str) -> str:
    """Return the first operand of the operation that makes a value; empty for another operation."""
    node = graph.source(name, op_type)
    return "" if node is None else node.inputs[0]


def value_like(value: Value, name: str) -> Value:
    """Return the value of another name, of the same dtype and shape."""
    return Value(value.dtype, value.shape, value.shape, name)


def _reduced(graph: TensorGraph, name: str, reducer: str) -> Reduction | None:
    """The reduction that a value is, or of which it is the column."""
    fact = graph.recall(name)
    if fact is None and (column := graph.source(name, "Unsqueeze")) is not None:
        fact = graph.recall(column.inputs[0])
        axes = graph.constant(column.inputs[1])
        if isinstance(fact, Reduction) and (axes is None or tuple(axes.tolist()) != fact.axes):
            return None
    elif isinstance(fact, Reduction) and fact.axes != (0,):
        return None  # it broadcasts to other places than those that it was reduced from
    if not isinstance(fact, Reduction) or fact.reducer != reducer or len(fact.axes) != 1:
        return None
    return fact
