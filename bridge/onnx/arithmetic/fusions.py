"""Several operations that are one operation of ONNX.

They are found while the graph is built, by what the operands of the last of them come from; what
nobody uses any more then is left out in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = ["Reduction", "fuse_difference", "fuse_product", "fuse_quotient"]

_FIRST_WITH_GELU = 20
_GELU_DTYPES = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a value is known to be: a reduction of another one.

    Attributes:
        reducer: such as `add`.
        name: of the other value in the graph.
        shape: of the other value.
        axes: along which it was reduced.
    """

    reducer: str
    name: str
    shape: tuple[object, ...]
    axes: tuple[int, ...]


def fuse_quotient(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """Softmax and ReduceMean, which end in a division."""
    return _softmax(graph, dividend, divisor) or _mean(graph, dividend, divisor)


def fuse_difference(graph: Graph, left: Value, right: Value) -> Value | None:
    """LogSoftmax, which ends in a difference: of what is shifted and the logarithm of its sum."""
    logarithm = graph.source(right.name, "Log")
    if logarithm is None or not left.is_whole:
        return None
    total = _reduced(graph, logarithm.inputs[0], "add")
    power = None if total is None else graph.source(total.name, "Exp")
    if total is None or power is None or power.inputs[0] != left.name:
        return None
    return _normalized(graph, "LogSoftmax", left, left.name, total)


def fuse_product(graph: Graph, left: Value, right: Value) -> Value | None:
    """Gelu, which ends in a product: of the number and how likely a smaller one is."""
    if graph.opset < _FIRST_WITH_GELU or left.dtype.name not in _GELU_DTYPES:
        return None
    for one, other in ((left, right), (right, left)):
        if (found := _gelu(graph, one, other)) is not None:
            return found
    return None


def _reduced(graph: Graph, name: str, reducer: str) -> Reduction | None:
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


def _softmax(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    power = graph.source(dividend.name, "Exp")
    if power is None or not dividend.is_whole:
        return None
    total = _reduced(graph, divisor.name, "add")
    if total is None or total.name != dividend.name:
        return None
    return _normalized(graph, "Softmax", dividend, power.inputs[0], total)


def _normalized(
    graph: Graph, op_type: str, like: Value, shifted: str, total: Reduction
) -> Value | None:
    """Softmax or LogSoftmax of what was shifted by its own greatest element."""
    difference = graph.source(shifted, "Sub")
    if difference is None:
        return None
    name, shift = difference.inputs
    most = _reduced(graph, shift, "maximum")
    if most is None or (most.name, most.axes, most.shape) != (name, total.axes, like.shape):
        return None
    given = Value(like.dtype, like.shape, like.shape, name)
    return graph.node(op_type, [given], shape=like.shape, axis=total.axes[0])


def _mean(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """A sum by how many there were."""
    column = graph.source(dividend.name, "Unsqueeze")
    fact = graph.recall(dividend.name if column is None else column.inputs[0])
    if not isinstance(fact, Reduction) or fact.reducer != "add" or divisor.scalar is None:
        return None
    sizes = [fact.shape[axis] for axis in fact.axes]
    count = math.prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes) or float(divisor.scalar) != count:
        return None
    axes: Array | None = np.array(fact.axes)
    if column is not None:
        axes = graph.constant(column.inputs[1])
    if axes is None or tuple(axes.tolist()) != fact.axes:
        return None
    given = Value(dividend.dtype, (), (), fact.name)
    made = graph.node(
        "ReduceMean",
        [given, nodes.integers(fact.axes)],
        shape=dividend.held,
        keepdims=int(column is not None),
    )
    return made.seen_as(dividend.shape)


def _gelu(graph: Graph, value: Value, chance: Value) -> Value | None:
    """`x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`."""
    more = _scaled(graph, chance.name, 0.5)
    tanh_name = None if more is None else _other(graph, "Add", more, 1.0)
    tanh = None if tanh_name is None else graph.source(tanh_name, "Tanh")
    bent = None if tanh is None else _scaled(graph, tanh.inputs[0], math.sqrt(2 / math.pi))
    total = None if bent is None else graph.source(bent, "Add")
    if total is None or value.name not in total.inputs:
        return None
    rest = total.inputs[1 - total.inputs.index(value.name)]
    cube = _scaled(graph, rest, 0.044715)
    if cube is None or not _is_cube(graph, cube, value.name):
        return None
    made = graph.node("Gelu", [value], shape=value.held, approximate="tanh")
    return made.seen_as(value.shape)


def _is_cube(graph: Graph, name: str, base: str) -> bool:
    product = graph.source(name, "Mul")
    if product is None or base not in product.inputs:
        return False
    square = graph.source(product.inputs[1 - product.inputs.index(base)], "Mul")
    return square is not None and square.inputs == (base, base)


def _scaled(graph: Graph, name: str, factor: float) -> str | None:
    """Which value was multiplied by a number."""
    return _other(graph, "Mul", name, factor)


def _other(graph: Graph, op_type: str, name: str, number: float) -> str | None:
    """The operand of a node besides a constant, which is a number as near as its dtype has it."""
    node = graph.source(name, op_type)
    for place, other in enumerate(node.inputs if node is not None else ()):
        array = graph.constant(other)
        if array is not None and array.size == 1 and array.reshape(()) == array.dtype.type(number):
            assert node is not None, "there is an operand"
            return node.inputs[1 - place]
    return None
