"""The function that a region of two elements is, and reductions by regions of any kind.

Reductions, windows, scatters and sorts have such regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import Region
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, constant_array
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Shape, lower_bound, numbers_of, product
from xla_call_module.stablehlo.combiners import combiner_of, identity_of

# The combiners that targets have reductions for.
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


def changes_nothing_in(region: Region, starts: Sequence[Value], graph: TensorGraph) -> bool:
    """Return whether values change nothing that a region combines with them.

    What a region of logarithms makes is not known here: -inf is what their sums begin with.
    """
    random = np.random.default_rng(0)
    arrays = [_small(random, start.dtype) for start in starts]
    made = region.apply(graph.trial(), [*starts, *map(constant_array, arrays)])
    return all(
        bool(start.scalar == -np.inf)
        if value.array is None
        else np.allclose(value.array.astype(np.complex128), array, rtol=1e-6, atol=0)
        for start, value, array in zip(starts, made, arrays, strict=True)
    )


def depends_on_order(region: Region, graph: TensorGraph) -> bool:
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


def may_be_empty(value: Value, axes: Sequence[int]) -> bool:
    """Return whether there may be no elements along some dimensions."""
    return any((lower_bound(value.shape[axis]) or 0) < 1 for axis in axes)


def shape_without(shape: Shape, axes: Sequence[int]) -> Shape:
    """Return the sizes of all dimensions but some."""
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def in_lines(
    graph: TensorGraph, value: Value, axes: Sequence[int], *, first: bool = False
) -> Value:
    """The value with all that is reduced in its last dimension, or in its first one."""
    kept = [axis for axis in range(value.rank) if axis not in axes]
    length = product(value.shape[axis] for axis in axes)
    order = [*axes, *kept] if first else [*kept, *axes]
    shape = shape_without(value.shape, axes)
    turned = nodes.transpose(graph, value, order)
    return nodes.reshape(graph, turned, [length, *shape] if first else [*shape, length])


def is_counting(graph: TensorGraph, value: Value, axis: int) -> bool:
    """Return whether a value is 0, 1, 2, … along a dimension, and the same along the others."""
    unbroadcast = (1,) * (value.rank - len(value.unbroadcast_shape)) + value.unbroadcast_shape
    if value.array is not None:
        lines = np.moveaxis(value.array.reshape(numbers_of(unbroadcast)), axis, -1)
        size = lines.shape[-1]
        return value.shape[axis] == size and bool((lines == np.arange(size)).all())
    if any(dim != 1 for number, dim in enumerate(unbroadcast) if number != axis):
        return False
    node = graph.producer(value)
    while node is not None and node.op_type in ("Cast", "Unsqueeze"):
        node = graph.source(node.inputs[0])
    return node is not None and node.op_type == "Range"  # which only iota makes


def reduce_by_region(
    graph: TensorGraph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axes: Sequence[int],
) -> Sequence[Value]:
    """Combine neighbours, all pairs at once; in a Loop if order matters or the size is dynamic."""
    shape = shape_without(values[0].shape, axes)
    length = product(values[0].shape[axis] for axis in axes)
    placed = [nodes.broadcast_in_dim(graph, start, [], shape) for start in starts]
    if not isinstance(length, int) or (length > 1 and depends_on_order(region, graph)):
        return _reduce_in_order(graph, region, values, placed, axes)
    lines = [in_lines(graph, value, axes) for value in values]
    while length > 1:
        lines = _combine_neighbours(graph, region, lines, length)
        length = (length + 1) // 2
    return region.apply(graph, [*placed, *(nodes.reshape(graph, line, shape) for line in lines)])


def _reduce_in_order(
    graph: TensorGraph,
    region: Region,
    values: Sequence[Value],
    starts: Sequence[Value],
    axes: Sequence[int],
) -> Sequence[Value]:
    """Combine what the reductions begin with, of their shape, and one element after another."""
    whole = [graph.expand(value) for value in values]
    lines = [graph.expand(in_lines(graph, value, axes, first=True)) for value in whole]

    def step(body: TensorGraph, number: Value, before: list[Value]) -> list[Value]:
        rows = [nodes.gather(body, line, number, 0) for line in lines]
        reduced = region.apply(body, [*before, *rows])
        return [value.broadcast_to(starts[0].shape) for value in reduced]

    return graph.loop(lines[0].shape[0], starts, step)


def _combine_neighbours(
    graph: TensorGraph, region: Region, lines: Sequence[Value], length: int
) -> list[Value]:
    axis, even = lines[0].rank - 1, length - length % 2
    left = [nodes.slice_along(graph, line, axis, 0, even, 2) for line in lines]
    right = [nodes.slice_along(graph, line, axis, 1, even, 2) for line in lines]
    combined = region.apply(graph, [*left, *right])
    if even == length:
        return combined
    rest = [nodes.slice_along(graph, line, axis, even, length) for line in lines]
    return [nodes.concat(graph, pair, axis) for pair in zip(combined, rest, strict=True)]
