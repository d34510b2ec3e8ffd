"""Products of matrices: MatMul, with what it takes to bring the operands into its form."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import layouts, nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim, product

_ELEMENTS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
# JAX on a CPU takes algorithms that round operands to these, and does not round them.
_UNROUNDED = ("bf16",)
# The bits of the fractions of element types, and numbers that are within the bounds of all of them.
_FRACTIONS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53, "tf32": 11}
_LEAST, _GREATEST = 2.0**-14, 2.0**15
# Each has integers up to it, and sums of 2**16 products of two of them are exact in float32.
_SMALL_INTEGER = 1 << 4


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand.

    Attributes:
        batch: the dimensions that both operands have.
        contracted: the dimensions along which products are added.
        free: the dimensions that it alone has.
    """

    value: Value
    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    free: tuple[int, ...]

    def sizes(self, axes: Sequence[int]) -> list[Dim]:
        """The sizes of some dimensions."""
        return [self.value.shape[axis] for axis in axes]


def product_operands(graph: TensorGraph, op: Operation) -> list[Value]:
    """Return both operands in the dtype in which they are multiplied and their products added.

    It has all numbers of the operands, and of the result where that is not narrower:
    `preferred_element_type` widens operands, and rounds only what has been added.
    """
    dtype = _product_dtype([*(value.dtype for value in op.operands[:2]), op.result.dtype])
    return [nodes.cast(graph, value, dtype) for value in op.operands[:2]]


def _product_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    floats = {dtype for dtype in dtypes if not _is_integer(dtype)}
    if not floats:
        return dtypes[-1]
    if any(dtype.kind == "c" for dtype in floats):
        return np.result_type(*floats)
    widest = max(dtype.itemsize for dtype in floats)
    wide = {dtype for dtype in floats if dtype.itemsize == widest}
    small_integers = all(dtype.itemsize == 1 for dtype in dtypes if _is_integer(dtype))
    if len(wide) == 1 and (small_integers or widest >= np.dtype(np.float32).itemsize):
        return wide.pop()
    return np.dtype(np.float32)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "b" or "int" in dtype.name


def to_result(graph: TensorGraph, op: Operation, made: Value) -> Value:
    """Return what was added as the result, converted as StableHLO converts it."""
    if made.dtype == op.result.dtype:
        return made
    converted = dataclasses.replace(op, operands=(made,))
    result = op.target.rules["stablehlo.convert"].emit(graph, converted)
    assert isinstance(result, Value), "a conversion has one result"
    return result


def _dot_general(graph: TensorGraph, op: Operation) -> Value:
    _check_algorithm(op)
    numbers, values = op.dimension_numbers(), product_operands(graph, op)
    left, right = (
        _side(value, numbers, name) for value, name in zip(values, ("lhs", "rhs"), strict=True)
    )
    compute = _product if left.contracted else _outer_product
    return to_result(graph, op, compute(graph, left, right))


def _dot(graph: TensorGraph, op: Operation) -> Value:
    """The product of vectors or matrices, an operation that older modules have."""
    left, right = product_operands(graph, op)
    made = _product(
        graph,
        _Side(left, (), (left.rank - 1,), tuple(range(left.rank - 1))),
        _Side(right, (), (0,), tuple(range(1, right.rank))),
    )
    return to_result(graph, op, made)


def _check_algorithm(op: Operation) -> None:
    """Refuse a product whose operands are to be rounded first, on every processor."""
    for side, value in zip(("lhs", "rhs"), op.operands, strict=True):
        precision = re.search(rf"{side}_precision_type = (\w+)", op.text("algorithm"))
        if (
            precision
            and precision[1] not in _UNROUNDED
            and precision[1] != _ELEMENTS.get(value.dtype.name)
            and not _is_exact_in(precision[1], value)
        ):
            op.refuse(
                f"its algorithm rounds operands of {value.dtype.name} to {precision[1]}, which "
                f"{op.target.name} does not",
                "export it without preferred_element_type's algorithm, or cast the operands",
            )


def _is_exact_in(element: str, value: Value) -> bool:
    """Return whether a constant is known to stay as it is when it is rounded to an element type.

    Integers do so only where their products stay as they are as well, and the sums of some of them.
    """
    if value.array is None or element not in _FRACTIONS:
        return False
    numbers = value.array.astype(np.float64)
    if not value.is_float:
        return bool((np.abs(numbers) < _SMALL_INTEGER).all())
    fraction = np.ldexp(np.frexp(numbers)[0], _FRACTIONS[element])
    usual = (numbers == 0) | ((np.abs(numbers) > _LEAST) & (np.abs(numbers) < _GREATEST))
    return bool((usual & (fraction == np.round(fraction))).all())


def _side(value: Value, numbers: Any, side: str) -> _Side:
    batch = tuple(getattr(numbers, f"{side}_batching_dimensions"))
    contracted = tuple(getattr(numbers, f"{side}_contracting_dimensions"))
    taken = (*batch, *contracted)
    return _Side(value, batch, contracted, tuple(a for a in range(value.rank) if a not in taken))


def _outer_product(graph: TensorGraph, left: _Side, right: _Side) -> Value:
    """Return the product of each element with each."""
    shape = [*left.sizes(left.batch), *left.sizes(left.free), *right.sizes(right.free)]
    batch = range(len(left.batch))
    rows = range(len(left.batch), len(left.batch) + len(left.free))
    columns = range(len(left.batch) + len(left.free), len(shape))
    placed = []
    for side, axes in ((left, rows), (right, columns)):
        value = nodes.transpose(graph, side.value, [*side.batch, *side.free])
        placed.append(nodes.broadcast_in_dim(graph, value, [*batch, *axes], shape))
    operation = "And" if left.value.dtype == bool else "Mul"
    return nodes.elementwise(graph, operation, *placed)


def _product(graph: TensorGraph, left: _Side, right: _Side) -> Value:
    """Return a MatMul of batch dimensions, left rows and right columns."""
    batch, rows = left.sizes(left.batch), left.sizes(left.free)
    columns, inner = right.sizes(right.free), product(left.sizes(left.contracted))
    if inner == 0:
        return nodes.constant_like(left.value, 0).broadcast_to((*batch, *rows, *columns))
    if _is_transposed(left, right) or _is_by_weights(graph, left, right):
        product_ = _product(graph, right, left)
        count = len(batch)
        return layouts.transpose(graph, product_, [*range(count), count + 1, count])
    is_layer = right.batch == () and len(left.contracted) == 1  # MatMul takes any rows, and vectors
    flat_rows = rows if is_layer else [product(rows)]
    a = nodes.transpose(graph, left.value, [*left.batch, *left.free, *left.contracted])
    a = nodes.reshape(graph, a, [*batch, *flat_rows, inner])
    # By a vector of no elements the runtime's product leaves its result as the memory was.
    may_be_vector = isinstance(inner, int) and not _is_transpose_node(graph, a)
    is_vector = not columns and not batch and may_be_vector
    flat_columns = columns if is_vector else [product(columns)]
    b = nodes.transpose(graph, right.value, [*right.batch, *right.contracted, *right.free])
    b = nodes.reshape(graph, b, [*batch, inner, *flat_columns])
    operands = [graph.expand(value) for value in (a, b)]
    made = graph.node("MatMul", operands, shape=[*batch, *flat_rows, *flat_columns])
    return nodes.reshape(graph, made, [*batch, *rows, *columns])


def _is_transpose_node(graph: TensorGraph, value: Value) -> bool:
    """Return whether ONNX Runtime would make one node of a Transpose and a MatMul behind it.

    Where the other operand is a vector it forgets the turn (seen with 1.31).
    """
    node = graph.producer(value)
    while node is not None and node.op_type == "Cast":
        node = graph.source(node.inputs[0])
    return node is not None and node.op_type == "Transpose"


def _is_transposed(left: _Side, right: _Side) -> bool:
    """Return whether the product in the other order transposes the right operand less."""
    if not left.batch or any(len(s.free) != 1 or len(s.contracted) != 1 for s in (left, right)):
        return False
    orders = [(*side.batch, *side.free, *side.contracted) for side in (left, right)]
    as_they_are = [order == tuple(range(len(order))) for order in orders]
    return as_they_are == [False, True]


def _is_by_weights(graph: TensorGraph, left: _Side, right: _Side) -> bool:
    """Return whether the left operand are weights that can be transposed once and for all.

    So it is with `w @ x` of each row under `jax.vmap`, which turns the result back behind it.
    """
    if left.batch or any((s.free, s.contracted) != ((0,), (1,)) for s in (left, right)):
        return False
    values = [side.value for side in (left, right)]
    return [v.array is not None or v.name in graph.initializers for v in values] == [True, False]


def _einsum(graph: TensorGraph, op: Operation) -> Value:
    """Return Einsum, an operation of older modules."""
    inputs = [graph.expand(value) for value in product_operands(graph, op)]
    equation = op.text("einsum_config")
    made = graph.node("Einsum", inputs, shape=op.shape_like(), equation=equation)
    return to_result(graph, op, made)


RULES = {
    "stablehlo.dot": Rule(_dot, ("precision_config",)),
    "stablehlo.dot_general": Rule(
        _dot_general, ("algorithm", "dot_dimension_numbers", "precision_config")
    ),
    "stablehlo.einsum": Rule(_einsum, ("einsum_config", "precision_config")),
    "stablehlo.unary_einsum": Rule(_einsum, ("einsum_config",)),
}
