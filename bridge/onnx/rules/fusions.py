"""Several operations that are one operation of ONNX.

They are found while the graph is built, by what the operands of the last of them come from; what
nobody uses any more then is left out in the end. Each computes in the same order, so that the
numbers stay: what is subtracted is subtracted first. Where the steps are rounded to 16 bits, none
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core_ops.softmaxes import (
    Reduction,
    fuse_log_softmax,
    fuse_softmax,
    operand_of,
    value_like,
)
from bridge.graphs import layouts, nodes
from bridge.graphs.folding import ELEMENTWISE, MAX_BYTES, OF_NUMBERS
from bridge.graphs.tensor_graph import Node
from bridge.graphs.values import Value, constant_array
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import GELU_OPSET
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Shape, is_static, numbers_of

# LayerNormalization and BatchNormalization have epsilon as an attribute, which is a float32, and by
# the specification mean and deviation have that precision, too.
_NORMALIZED_DTYPE = "float32"


def fuse_quotient(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """Return Softmax, ReduceMean or Sigmoid, which end in a division; None for other quotients."""
    for fuse in (fuse_softmax, _mean, _logistic):
        if (fused := fuse(graph, dividend, divisor)) is not None:
            return fused
    return None


def fuse_difference(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return LogSoftmax, but of float64, in which the runtime's passes over NaN."""
    return None if left.dtype == np.float64 else fuse_log_softmax(graph, left, right)


def fuse_product(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return Gelu or LayerNormalization, which end in a product; None for other products."""
    pairs = ((left, right), (right, left))
    for fuse in (_gelu, _exact_gelu, _layer, _scaled_layer):
        for one, other in pairs:
            if (fused := fuse(graph, one, other)) is not None:
                return fused
    return None


def fuse_sum(graph: Graph, left: Value, right: Value) -> Value | None:
    """Return BatchNormalization, or LayerNormalization with a shift; None for other sums."""
    if left.dtype.name != _NORMALIZED_DTYPE:
        return None
    for one, other in ((left, right), (right, left)):
        if (fused := _shifted_layer(graph, one, other) or _batch(graph, one, other)) is not None:
            return fused
    return None


def _operands(graph: Graph, name: str, op_type: str) -> list[tuple[str, str]]:
    """Return the two operands of the operation that makes a value, in either order."""
    node = graph.source(name, op_type)
    return (
        [] if node is None else [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])]
    )


def _number(graph: Graph, name: str) -> Array | None:
    array = graph.constant(name)
    return array.reshape(()) if array is not None and array.size == 1 else None


def _operand_beside(graph: Graph, name: str, op_type: str, number: float) -> str:
    """Return the operand beside a constant, a number as near as its dtype has it; else empty."""
    for constant, other in _operands(graph, name, op_type):
        array = _number(graph, constant)
        if array is not None and array == array.dtype.type(number):
            return other
    return ""


def _mean(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """A sum by how many there were."""
    column = graph.source(dividend.name, "Unsqueeze")
    fact = graph.recall(dividend.name if column is None else column.inputs[0])
    if not isinstance(fact, Reduction) or fact.reducer != "add" or divisor.scalar is None:
        return None
    if _is_power(graph, fact.name) or dividend.dtype.name not in ("float32", "float64"):
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


def _logistic(graph: Graph, dividend: Value, divisor: Value) -> Value | None:
    """Return Sigmoid for 1 / (1 + exp(-x)) where a graph need not be exact; None otherwise.

    Kernels have 0 for what is small.
    """
    if graph.exact or dividend.scalar != 1 or not dividend.is_float:
        return None
    total = graph.source(divisor.name, "Add")
    if total is None:
        return None
    for name in total.inputs:
        inner = operand_of(graph, operand_of(graph, name, "Exp"), "Neg")
        others = [graph.constant(other) for other in total.inputs if other != name]
        is_one = len(others) == 1 and others[0] is not None and bool((others[0] == 1).all())
        if inner and is_one:
            shape = divisor.unbroadcast_shape
            made = graph.node("Sigmoid", [Value(divisor.dtype, shape, shape, inner)], shape=shape)
            return made.broadcast_to(dividend.shape)
    return None


def _is_power(graph: Graph, name: str) -> bool:
    """Return whether a value is a power, around whose mean ONNX Runtime sees normalizations.

    It does not look at the exponent, and takes another epsilon than the graph has.
    """
    node = graph.source(name)
    while node is not None and node.op_type == "Cast":
        node = graph.source(node.inputs[0])
    return node is not None and node.op_type == "Pow"


def _gelu(graph: Graph, value: Value, cdf: Value) -> Value | None:
    """Match `x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`."""
    if graph.opset < GELU_OPSET or value.dtype != np.float32:
        return None
    tanh = _operand_beside(graph, _operand_beside(graph, cdf.name, "Mul", 0.5), "Add", 1.0)
    bent = _operand_beside(graph, operand_of(graph, tanh, "Tanh"), "Mul", math.sqrt(2 / math.pi))
    for one, rest in _operands(graph, bent, "Add"):
        cube = _operand_beside(graph, rest, "Mul", 0.044715)
        if one == value.name and _is_cube(graph, cube, one):
            made = graph.node("Gelu", [value], shape=value.unbroadcast_shape, approximate="tanh")
            return made.broadcast_to(value.shape)
    return None


def _is_cube(graph: Graph, name: str, base: str) -> bool:
    squares = [other for one, other in _operands(graph, name, "Mul") if one == base]
    return any((base, base) in _operands(graph, square, "Mul") for square in squares)


@dataclass(frozen=True, slots=True)
class _Deviation:
    """A root of a variance and a small number, which something is divided by.

    Attributes:
        variance: the name of the variance.
        epsilon: the small number.
    """

    variance: str
    epsilon: float


def _deviation(graph: Graph, name: str) -> _Deviation | None:
    """Return the variance and the epsilon that the reciprocal of a deviation is made of."""
    total = operand_of(graph, operand_of(graph, name, "Reciprocal"), "Sqrt")
    for constant, variance in _operands(graph, total, "Add"):
        if (epsilon := _number(graph, constant)) is not None:
            return _Deviation(variance, float(epsilon))
    return None


def _layer(graph: Graph, centred: Value, factor: Value) -> Value | None:
    if centred.dtype.name != _NORMALIZED_DTYPE:
        return None
    difference = graph.source(centred.name, "Sub")
    deviation = _deviation(graph, factor.name)
    if difference is None or deviation is None or not centred.is_expanded:
        return None
    name, mean = difference.inputs
    square = graph.source(_averaged(graph, deviation.variance, centred.shape), "Mul")
    if square is None or square.inputs[0] != square.inputs[1]:
        return None
    inner = graph.source(square.inputs[0], "Sub")
    if inner is None or inner.inputs[0] != name or graph.shape_of(name) != centred.shape:
        return None
    if any(_averaged(graph, one, centred.shape) != name for one in (mean, inner.inputs[1])):
        return None
    size = centred.shape[-1]
    if not isinstance(size, int) or size > MAX_BYTES:
        return None
    scale = constant_array(np.ones(size, centred.dtype))
    return _layer_node(graph, deviation.epsilon, value_like(centred, name), scale)


def _averaged(graph: Graph, name: str, shape: Shape) -> str:
    """Return the value that another one is the mean of, along the last dimension (kept as 1)."""
    node = graph.source(name, "ReduceMean")
    if node is None or node.attributes.get("keepdims") != 1:
        return ""
    axes = graph.initializers.get(node.inputs[1])
    is_last = axes is not None and axes.tolist() in ([len(shape) - 1], [-1])
    return node.inputs[0] if is_last else ""


def _layer_node(graph: Graph, epsilon: float, value: Value, *rows: Value) -> Value:
    """Return LayerNormalization of a value with a scale, and a shift if there is one."""
    inputs = [value, *rows]
    return graph.node("LayerNormalization", inputs, shape=value.shape, axis=-1, epsilon=epsilon)


def _is_row(value: Value, like: Value) -> bool:
    """Return whether a value has one number for each place in the last dimension."""
    return value.unbroadcast_shape == like.shape[-1:] and isinstance(
        value.unbroadcast_shape[0], int
    )


def _unshifted_layer(graph: Graph, normalized: Value, row: Value) -> Node | None:
    """Return LayerNormalization without a shift that something like a row is applied to."""
    node = graph.source(normalized.name, "LayerNormalization")
    return node if node and len(node.inputs) == 2 and _is_row(row, normalized) else None


def _scaled_layer(graph: Graph, normalized: Value, scale: Value) -> Value | None:
    node = _unshifted_layer(graph, normalized, scale)
    before = None if node is None else graph.constant(node.inputs[1])
    if node is None or before is None or (before != 1).any():
        return None
    return _layer_node(
        graph, node.attributes["epsilon"], value_like(normalized, node.inputs[0]), scale
    )


def _shifted_layer(graph: Graph, normalized: Value, shift: Value) -> Value | None:
    node = _unshifted_layer(graph, normalized, shift)
    if node is None:
        return None
    value = value_like(normalized, node.inputs[0])
    scale = Value(shift.dtype, shift.unbroadcast_shape, shift.unbroadcast_shape, node.inputs[1])
    return _layer_node(graph, node.attributes["epsilon"], value, scale, shift)


def _batch(graph: Graph, product: Value, shift: Value) -> Value | None:
    """Match `(x - mean) * (scale / deviation) + shift`, where x has features behind the batch.

    BatchNormalization adds `shift - mean * scale / deviation` last, so it is of a mean of 0, and
    the other one is subtracted before: as a sum with its opposite, which ONNX Runtime puts into a
    convolution, with all of the normalization.
    """
    fact, row = layouts.transposition_of(graph, product), shift.unbroadcast_shape
    if fact is None or fact.order[-1] != 1 or len(row) != 1 or not is_static(row) or not shift.name:
        return None
    for centred, scaling_name in _operands(graph, fact.value.name, "Mul"):
        difference = graph.source(centred, "Sub")
        scaling = _scaling(graph, operand_of(graph, scaling_name, "Unsqueeze"))
        if difference is None or scaling is None:
            continue
        scale, deviation = scaling
        rows = [scale, shift.name, deviation.variance]
        value, mean = difference.inputs
        if graph.shape_of(value) != fact.value.shape or any(graph.shape_of(r) != row for r in rows):
            continue
        shape = graph.shape_of(mean) or ()
        opposite = nodes.elementwise(graph, "Neg", Value(shift.dtype, shape, shape, mean))
        moved = nodes.elementwise(graph, "Add", value_like(fact.value, value), opposite)
        gain, offset, variance = (Value(shift.dtype, row, row, name) for name in rows)
        zeros = constant_array(np.zeros(numbers_of(row), shift.dtype))
        inputs = [graph.expand(moved), gain, offset, zeros, variance]
        shape, epsilon = fact.value.shape, deviation.epsilon
        made = graph.node("BatchNormalization", inputs, shape=shape, epsilon=epsilon)
        return layouts.transpose(graph, made, fact.order)
    return None


def _scaling(graph: Graph, name: str) -> tuple[str, _Deviation] | None:
    """Return the scale that is divided by a deviation."""
    for factor, scale in _operands(graph, name, "Mul"):
        if (deviation := _deviation(graph, factor)) is not None:
            return scale, deviation
    return None


_MAX_NODES = 100
# Both branches of the expansion, where they meet, and where nothing is left of the tail.
_POINTS = np.concatenate([np.linspace(-16, 16, 401), [-1e3, 1e3], np.linspace(-2, 2, 97)])
_NORMAL_CDF = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in _POINTS])
# Relative to the distribution function, and absolute where it is tiny: as far as JAX itself is off.
_TOLERANCE = (2e-5, 1e-12)
_TOLERANCE_OF_SUM = (0.0, 3e-7)

_Compute = Callable[..., Any]
_COMPUTE: Mapping[str, _Compute] = {
    **ELEMENTWISE,
    **OF_NUMBERS,
    "Div": np.divide,
    "Erf": np.vectorize(math.erf, otypes=[np.float64]),
}


def _exact_gelu(graph: Graph, value: Value, cdf: Value) -> Value | None:
    """Return Gelu by erf, by what the factor computes at points; None for other products.

    The runtime's is as precise as a sum of 1 and the error function: its error is relative to the
    number, and not to what is left of it far below zero.
    """
    node = graph.producer(cdf)
    if graph.opset < GELU_OPSET or value.dtype != np.float32 or not value.is_expanded:
        return None
    if node is None or not _may_be_normal_cdf(graph, node):
        return None
    half = _operand_beside(graph, value.name, "Mul", 0.5)
    for name, factor in ((value.name, 1.0), *([(half, 0.5)] if half else [])):
        if _is_normal_cdf(graph, cdf.name, name, factor, exact=node.op_type == "Where"):
            return graph.node("Gelu", [value_like(value, name)], shape=value.shape)
    return None


def _may_be_normal_cdf(graph: Graph, node: Node) -> bool:
    """Return whether a node ends as the complementary error function does, or a sum with erf."""
    if node.op_type == "Where":
        return True
    sources = [graph.source(name) for name in node.inputs]
    names = {source.op_type for source in sources if source is not None}
    is_sum = node.op_type == "Add" and not names.isdisjoint(("Erf", "Where"))
    return is_sum or (node.op_type == "Mul" and "Add" in names)


def _is_normal_cdf(graph: Graph, name: str, base: str, factor: float, *, exact: bool) -> bool:
    """Return whether a value by a factor is the normal distribution function of another value."""
    known: dict[str, Any] = {base: _POINTS}
    with np.errstate(all="ignore"):
        cdf = _evaluate(graph, name, known)
    if cdf is None:
        return False
    rtol, atol = _TOLERANCE if exact else _TOLERANCE_OF_SUM
    return bool(np.allclose(np.asarray(cdf) * factor, _NORMAL_CDF, rtol=rtol, atol=atol))


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
