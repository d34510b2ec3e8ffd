"""Several operations that are one operation of ONNX.

They are found while the graph is built, by what the operands of the last of them come from; what
nobody uses any more then is left out in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.onnx.graph.graph_builder import Graph, Node
from bridge.onnx.graph.onnx_runtime import GELU_OPSET, has_kernel
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = ["Reduction", "fuse_difference", "fuse_exact_gelu", "fuse_product", "fuse_quotient"]


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


def fuse_quotient(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """Return Softmax or ReduceMean, which end in a division; None for other quotients."""
    return _softmax(graph, dividend, divisor) or _mean(graph, dividend, divisor)


def fuse_difference(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return LogSoftmax, which ends in a difference; None for other differences."""
    logarithm = graph.source(right.name, "Log")
    if logarithm is None or not left.is_expanded:
        return None
    total = _reduced(graph, logarithm.inputs[0], "add")
    power = None if total is None else graph.source(total.name, "Exp")
    if total is None or power is None or power.inputs[0] != left.name:
        return None
    return _normalized(graph, "LogSoftmax", left, left.name, total)


def fuse_product(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return Gelu with tanh, which ends in a product; None for other products."""
    if graph.opset < GELU_OPSET or not has_kernel("Gelu", left.dtype.name):
        return None
    for one, other in ((left, right), (right, left)):
        if (gelu := _gelu(graph, one, other)) is not None:
            return gelu
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
    if power is None or not dividend.is_expanded:
        return None
    total = _reduced(graph, divisor.name, "add")
    if total is None or total.name != dividend.name:
        return None
    return _normalized(graph, "Softmax", dividend, power.inputs[0], total)


def _normalized(
    graph: Graph, op_type: str, like: Value, shifted: str, total: Reduction
) -> Value | None:
    """Return Softmax or LogSoftmax of a value that was shifted by its greatest element."""
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
    if _is_power(graph, fact.name):
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
        [given, graph.vector(fact.axes)],
        shape=dividend.unbroadcast_shape,
        keepdims=int(column is not None),
    )
    return made.broadcast_to(dividend.shape)


def _is_power(graph: Graph, name: str) -> bool:
    """Return whether a value is a power, around whose mean ONNX Runtime sees normalizations.

    It does not look at the exponent, and takes another epsilon than the graph has.
    """
    node = graph.source(name)
    while node is not None and node.op_type == "Cast":
        node = graph.source(node.inputs[0])
    return node is not None and node.op_type == "Pow"


def _gelu(graph: Graph, value: Value, chance: Value) -> Value | None:
    """Match `x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`."""
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
    made = graph.node("Gelu", [value], shape=value.unbroadcast_shape, approximate="tanh")
    return made.broadcast_to(value.shape)


def _is_cube(graph: Graph, name: str, base: str) -> bool:
    product = graph.source(name, "Mul")
    if product is None or base not in product.inputs:
        return False
    square = graph.source(product.inputs[1 - product.inputs.index(base)], "Mul")
    return square is not None and square.inputs == (base, base)


def _scaled(graph: Graph, name: str, factor: float) -> str | None:
    """Return the name of the value that was multiplied by a number."""
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


_MAX_NODES = 100
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


def fuse_exact_gelu(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return Gelu by erf, found by what the factors compute; None for other products.

    The runtime's is as precise as a sum of 1 and the error function: its error is relative to the
    number, and not to what is left of it far below zero.
    """
    if graph.opset < GELU_OPSET or left.dtype != np.float32:
        return None
    for one, other in ((left, right), (right, left)):
        node = graph.producer(other)
        if node is None or not one.is_expanded or not _may_be_chance(graph, node):
            continue
        half = _half_of(graph, one.name)
        for name, factor in ((one.name, 1.0), *([(half, 0.5)] if half else [])):
            if _is_chance(graph, other.name, name, factor, exact=node.op_type == "Where"):
                given = Value(one.dtype, one.shape, one.shape, name)
                return graph.node("Gelu", [given], shape=one.shape)
    return None


def _may_be_chance(graph: Graph, node: Node) -> bool:
    """Return whether a node ends as the complementary error function does, or a sum with erf."""
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
    """Return whether a value is the chance times a factor, as a function of another value alone."""
    known: dict[str, Any] = {base: _POINTS}
    with np.errstate(all="ignore"):
        chance = _evaluate(graph, name, known)
    if chance is None:
        return False
    rtol, atol = _TOLERANCE if exact else _TOLERANCE_OF_SUM
    return bool(np.allclose(np.asarray(chance) * factor, _SMALLER, rtol=rtol, atol=atol))


def _evaluate(graph: Graph, name: str, known: dict[str, Any]) -> Any:
    """Return the value at the points; None where it depends on anything else."""
    if name in known:
        return known[name]
    if len(known) > _MAX_NODES:
        return None
    result = _number(graph, name)
    node = graph.source(name)
    if node is not None and node.op_type in _COMPUTE:
        operands = [_evaluate(graph, operand, known) for operand in node.inputs]
        if not any(operand is None for operand in operands):
            result = _COMPUTE[node.op_type](*operands)
    known[name] = result
    return result
