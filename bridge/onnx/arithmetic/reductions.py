"""Reductions along dimensions, and the function that a region of two elements is.

Windows, scatters and sorts have such regions as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Region, Rule
from bridge.graphs import layouts, nodes
from bridge.graphs.values import Value, constant_array, of_array
from bridge.onnx.arithmetic.fusions import Reduction
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.loop_nodes import loop
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Shape, lower_bound, product
from xla_call_module.stablehlo.combiners import (
    Trial,
    combiner_of,
    extreme_and_place_of,
    identity_of,
)

__all__ = [
    "REDUCERS",
    "RULES",
    "depends_on_order",
    "is_identity",
    "reduce_along",
    "reducer_of",
    "trial_of",
]

# The operations of which ONNX has reductions.
REDUCERS = frozenset({"add", "and", "maximum", "minimum", "multiply", "or"})
# So many triples of small numbers say whether it matters which two of them are combined first.
_TRIALS = 256


def reducer_of(region: Region) -> str:
    """Return `add`, `maximum`, … or `replace` if a region does that alone; empty otherwise."""
    name = combiner_of(region.block)
    return name if name in REDUCERS or name == "replace" else ""


def is_identity(reducer: str, value: Value) -> bool:
    """Return whether a value is known to change nothing."""
    return value.scalar is not None and bool(value.scalar == identity_of(reducer, value.dtype))


def depends_on_order(region: Region, graph: Graph) -> bool:
    """Return whether it is known to matter which neighbours a region combines first.

    StableHLO leaves that open, so it should not; but XLA and its interpreter go from the first on.
    """
    kinds = region.arguments[: len(region.arguments) // 2]
    random = np.random.default_rng(0)
    triples = [[_small(random, kind.dtype) for kind in kinds] for _ in range(3)]
    first, second, third = (list(map(constant_array, arrays)) for arrays in triples)

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return region.apply(graph.trial(), [*left, *right])

    forward = combine(combine(first, second), third)
    backward = combine(first, combine(second, third))
    pairs = [(one.array, other.array) for one, other in zip(forward, backward, strict=True)]
    return not all(_alike(one, other) for one, other in pairs)


def _small(random: np.random.Generator, dtype: np.dtype[Any]) -> Array:
    """Return numbers of which sums and products of three are exact."""
    least = 0 if dtype.kind in "bu" or dtype.name.startswith("uint") else -2
    return random.integers(least, 2 if dtype.kind == "b" else 4, _TRIALS).astype(dtype)


def _alike(one: Array | None, other: Array | None) -> bool:
    """Return whether two results are the same, up to how floats are rounded, or not known."""
    if one is None or other is None:
        return True
    if one.dtype.kind in "biu" or "int" in one.dtype.name:
        return bool((one == other).all())
    left, right = one.astype(np.float64), other.astype(np.float64)
    return bool(np.allclose(left, right, rtol=0.05, atol=0.05, equal_nan=True))


def trial_of(region: Region, graph: Graph) -> Trial:
    """Return the function that applies a region to numbers, element by element."""

    def trial(arrays: list[Array]) -> list[Array] | None:
        kinds = region.arguments  # narrow types are carried in their storage dtypes
        stored = [array.astype(kind.dtype) for array, kind in zip(arrays, kinds, strict=True)]
        values = region.apply(graph.trial(), list(map(constant_array, stored)))
        known = [value.array for value in values if value.array is not None]
        return known if len(known) == len(values) else None

    return trial


_OPERATIONS = {
    "add": "ReduceSum",
    "and": "ReduceMin",
    "maximum": "ReduceMax",
    "minimum": "ReduceMin",
    "multiply": "ReduceProd",
    "or": "ReduceMax",
}
_COMBINING = {
    "add": "Add",
    "and": "And",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "or": "Or",
}


def _reduce(graph: Graph, op: Operation) -> Sequence[Value]:
    count = len(op.operands) // 2
    values, starts = op.operands[:count], op.operands[count:]
    axes, (region,) = op.integers("dimensions"), op.regions
    if product(values[0].shape[axis] for axis in axes) == 0:
        shape = _without(values[0].shape, axes)
        return [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    reducer = reducer_of(region) if count == 1 else ""
    if reducer in _OPERATIONS and _has_operation(reducer, values[0]):
        return [_reduce_simply(graph, reducer, values[0], starts[0], axes)]
    orderly = count == 2 and len(axes) == 1 and values[0].dtype != np.uint64
    orderly = orderly and not _may_be_empty(values[0], axes)
    if orderly and _is_counting(graph, values[1], axes[0]):
        order = extreme_and_place_of(region.block, trial_of(region, graph))
        least = "maximum" if order == "max" else "minimum"
        if order and is_identity(least, starts[0]) and starts[1].scalar == 0:
            return _extreme_and_index(graph, order, values, axes[0])
    return _reduce_by_region(graph, region, values, starts, axes)


def _may_be_empty(value: Value, axes: Sequence[int]) -> bool:
    """Return whether there may be no elements along some dimensions."""
    return any((lower_bound(value.shape[axis]) or 0) < 1 for axis in axes)


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _has_operation(reducer: str, value: Value) -> bool:
    """Return whether ONNX has the reduction: not of bits, integer products and sums of bools."""
    if reducer in ("and", "or"):
        return value.dtype == bool
    return value.is_float or (value.dtype != bool and reducer != "multiply")


def _reduce_simply(
    graph: Graph, reducer: str, value: Value, start: Value, axes: Sequence[int]
) -> Value:
    result = reduce_along(graph, reducer, value, axes)
    if is_identity(reducer, start):
        return result
    return nodes.elementwise(graph, _COMBINING[reducer], result, start)


def reduce_along(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """The reduction along some dimensions.

    ONNX Runtime finds NaN among the least and greatest of numbers only in some places, so it is
    looked for apart.
    """
    if all(value.shape[axis] == 1 for axis in axes):
        return nodes.squeeze(graph, value, axes)
    if reducer == "add" and not value.is_float:
        return _sum_of_integers(graph, value, axes)
    is_order = reducer in ("maximum", "minimum")
    if is_order and value.dtype.name in ("int64", "uint32", "uint64"):
        return _extreme_of_integers(graph, reducer, value, axes)
    value, axes = layouts.untransposed_axes(graph, graph.expand(value), axes)
    result = _node(graph, _OPERATIONS[reducer], value, axes)
    fact = Reduction(reducer, graph.reference(value), value.shape, tuple(axes))
    if not is_order or not value.is_float:
        graph.remember(result, fact)
        return result
    is_nan = nodes.elementwise(graph, "IsNaN", value)
    any_nan = _node(graph, "ReduceMax", is_nan, axes)
    result = nodes.where(graph, any_nan, np.nan, result)
    graph.remember(result, fact)
    return result


def _in_lines(graph: Graph, value: Value, axes: Sequence[int], *, first: bool = False) -> Value:
    """The value with all that is reduced in its last dimension, or in its first one."""
    kept = [axis for axis in range(value.rank) if axis not in axes]
    length = product(value.shape[axis] for axis in axes)
    order = [*axes, *kept] if first else [*kept, *axes]
    shape = _without(value.shape, axes)
    turned = nodes.transpose(graph, value, order)
    return nodes.reshape(graph, turned, [length, *shape] if first else [*shape, length])


def _sum_of_integers(graph: Graph, value: Value, axes: Sequence[int]) -> Value:
    """A product with ones, which wraps around; the runtime's own sum is in float64."""
    shape = _without(value.shape, axes)
    if 0 in shape:  # which the runtime's product does not take
        return nodes.constant_like(value, 0).broadcast_to(shape)
    lines = graph.expand(_in_lines(graph, graph.expand(value), axes))
    ones = graph.expand(nodes.constant_like(value, 1).broadcast_to(lines.shape[-1:]))
    return graph.node("MatMul", [lines, ones], shape=lines.shape[:-1])


def _extreme_of_integers(graph: Graph, reducer: str, value: Value, axes: Sequence[int]) -> Value:
    """The element where it is, since the runtime compares 32 bits; unsigned ones in their order."""
    bits = 8 * value.dtype.itemsize
    signed = _with_flipped_sign(graph, value, f"int{bits}") if value.is_unsigned else value
    if bits == 32:
        extreme = _node(graph, _OPERATIONS[reducer], signed, axes)
    else:
        lines = _in_lines(graph, graph.expand(signed), axes)
        if _may_be_empty(value, axes):
            least = of_array(identity_of(reducer, signed.dtype))
            column = least.broadcast_to((*lines.shape[:-1], 1))
            lines = nodes.concat(graph, [lines, column], lines.rank - 1)
        lines = graph.expand(lines)
        name = "ArgMax" if reducer == "maximum" else "ArgMin"
        where = _arg(graph, name, lines, lines.rank - 1)
        extreme = _take(graph, lines, where, lines.rank - 1)
    return _with_flipped_sign(graph, extreme, value.dtype.name) if value.is_unsigned else extreme


def _with_flipped_sign(graph: Graph, value: Value, dtype: str) -> Value:
    """Return unsigned integers as signed ones in the same order, or back."""
    sign = np.array(1 << 63 if "64" in dtype else 1 << 31, np.uint64).astype(dtype).item()
    return nodes.elementwise(graph, "BitwiseXor", nodes.cast(graph, value, dtype), sign)


def _node(graph: Graph, op_type: str, value: Value, axes: Sequence[int]) -> Value:
    if value.dtype == bool and _may_be_empty(value, axes):  # which the runtime takes of numbers
        of_numbers = _node(graph, op_type, nodes.cast(graph, value, np.uint8), axes)
        return nodes.cast(graph, of_numbers, bool)
    value = graph.expand(value)
    shape = _without(value.shape, axes)
    return graph.node(op_type, [value, graph.vector(axes)], shape=shape, keepdims=0)


def _is_counting(graph: Graph, value: Value, axis: int) -> bool:
    """Return whether a value is 0, 1, 2, … along a dimension, and the same along the others."""
    unbroadcast = (1,) * (value.rank - len(value.unbroadcast_shape)) + value.unbroadcast_shape
    if any(dim != 1 for number, dim in enumerate(unbroadcast) if number != axis):
        return False
    if value.array is not None:
        return bool((value.array.reshape(-1) == np.arange(value.array.size)).all())
    node = graph.producer(value)
    while node is not None and node.op_type in ("Cast", "Unsqueeze"):
        node = graph.source(node.inputs[0])
    return node is not None and node.op_type == "Range"  # which only iota makes


def _extreme_and_index(
    graph: Graph, order: str, values: Sequence[Value], axis: int
) -> Sequence[Value]:
    """The first greatest or least number, and where it is; or the first NaN."""
    value, counting = graph.expand(values[0]), values[1]
    where = _arg(graph, "ArgMax" if order == "max" else "ArgMin", value, axis)
    if value.is_float:
        is_nan = nodes.elementwise(graph, "IsNaN", value)
        first = _arg(graph, "ArgMax", nodes.cast(graph, is_nan, np.uint8), axis)
        any_nan = _node(graph, "ReduceMax", is_nan, [axis])
        where = nodes.where(graph, any_nan, first, where)
    return [_take(graph, value, where, axis), nodes.cast(graph, where, counting.dtype)]


def _arg(graph: Graph, op_type: str, value: Value, axis: int) -> Value:
    shape, kind = _without(value.shape, [axis]), np.dtype(np.int64)
    return graph.node(op_type, [value], shape=shape, dtype=kind, axis=axis, keepdims=0)


def _take(graph: Graph, value: Value, where: Value, axis: int) -> Value:
    """The element at an index along a dimension, for each place in the others."""
    column = graph.expand(nodes.expand_dims(graph, where, [axis]))
    taken = graph.node("GatherElements", [value, column], shape=column.shape, axis=axis)
    return nodes.squeeze(graph, taken, [axis])


def _reduce_by_region(
    graph: Graph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axes: Sequence[int],
) -> Sequence[Value]:
    """Combine neighbours, all pairs at once; in a Loop if order matters or the size is dynamic."""
    shape = _without(values[0].shape, axes)
    length = product(values[0].shape[axis] for axis in axes)
    placed = [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    if not isinstance(length, int) or (length > 1 and depends_on_order(region, graph)):
        return _reduce_in_order(graph, region, values, placed, axes)
    lines = [_in_lines(graph, value, axes) for value in values]
    while length > 1:
        lines = _combine_neighbours(graph, region, lines, length)
        length = (length + 1) // 2
    return region.apply(graph, [*placed, *(nodes.reshape(graph, line, shape) for line in lines)])


def _reduce_in_order(
    graph: Graph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axes: Sequence[int],
) -> Sequence[Value]:
    """Combine what the reductions begin with, of their shape, and one element after another."""
    whole = [graph.expand(value) for value in values]
    lines = [graph.expand(_in_lines(graph, value, axes, first=True)) for value in whole]

    def step(body: Graph, number: Value, before: list[Value]) -> list[Value]:
        rows = [nodes.gather(body, line, number, 0) for line in lines]
        reduced = region.apply(body, [*before, *rows])
        return [value.broadcast_to(starts[0].shape) for value in reduced]

    return loop(graph, lines[0].shape[0], starts, step)


def _combine_neighbours(
    graph: Graph, region: Region, lines: Sequence[Value], length: int
) -> list[Value]:
    axis, even = lines[0].rank - 1, length - length % 2
    left = [nodes.slice_along(graph, line, axis, 0, even, 2) for line in lines]
    right = [nodes.slice_along(graph, line, axis, 1, even, 2) for line in lines]
    combined = region.apply(graph, [*left, *right])
    if even == length:
        return combined
    rest = [nodes.slice_along(graph, line, axis, even, length) for line in lines]
    return [nodes.concat(graph, pair, axis) for pair in zip(combined, rest, strict=True)]


RULES = {
    "stablehlo.reduce": Rule(_reduce, ("dimensions",), expand=False),
}
