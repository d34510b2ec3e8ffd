"""Operations on arrays of more dimensions than their kernels take, by fewer ones.

`signatures.max_rank` says how many a kernel takes. Dimensions in which an operation does the same
are one dimension for it; what it does along several is done along one after another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.graphs import nodes
from bridge.graphs.tensor_graph import Results, TensorGraph
from bridge.graphs.values import Value, of_sizes
from bridge.tf_operations.signatures import BROADCASTING, max_rank
from xla_call_module.size_polynomials import Dim, Shape, product


@dataclass(frozen=True, slots=True)
class _Node:
    """An operation with one result, before it is a node.

    Attributes:
        shape: the shape of the result, with None for a size that is measured.
    """

    graph: TensorGraph
    op_type: str
    inputs: Sequence[Value]
    shape: Sequence[Dim | None]
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]

    @property
    def whole(self) -> Shape:
        """The shape of the result, without the sizes that are measured."""
        return tuple(dim for dim in self.shape if dim is not None)

    def tensor(self, number: int) -> Value:
        """Return the tensor of an operand, which is not broadcast."""
        value = self.inputs[number]
        shape = value.unbroadcast_shape
        return Value(value.dtype, shape, shape, self.graph.reference(value))


def within_kernel(
    graph: TensorGraph,
    op_type: str,
    inputs: Sequence[Value],
    results: Results,
    attributes: Mapping[str, Any],
) -> list[Value] | None:
    """Return the results of an operation by fewer dimensions; None where its kernel takes them."""
    limit = max_rank(op_type)
    rule = _broadcast if op_type in BROADCASTING else _RULES.get(op_type)
    if limit is None or rule is None:
        return None
    made = rule(_Node(graph, op_type, inputs, *results[0], attributes), limit)
    return None if made is None else [graph.expand(made)]


def _alike(states: Sequence[Hashable]) -> list[list[int]]:
    """Return runs of neighbouring axes with the same state."""
    pairs = itertools.groupby(enumerate(states), lambda pair: pair[1])
    return [[axis for axis, _ in run] for _, run in pairs]


def _states(shapes: Sequence[Shape], rank: int) -> list[tuple[bool, ...]]:
    """Return for each axis which operands have a size of 1 there.

    Where all have, it is what it is before or behind.
    """
    whole = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    states = [tuple(shape[axis] == 1 for shape in whole) for axis in range(rank)]
    telling = [state for state in states if not all(state)] or [()]
    filled, last = [], telling[0]
    for state in states:
        last = last if all(state) else state
        filled.append(last)
    return filled


def _merged(shape: Shape, runs: Sequence[Sequence[int]]) -> Shape:
    return tuple(product(shape[axis] for axis in run) for run in runs)


def _broadcast(node: _Node, limit: int) -> Value | None:
    """Compute element by element of operands whose alike dimensions are one, or of rows of all."""
    graph, whole, rank = node.graph, node.whole, len(node.shape)
    if rank <= limit or len(whole) < rank:
        return None
    runs = _alike(_states([value.unbroadcast_shape for value in node.inputs], rank))
    if len(runs) <= limit and node.op_type != "Where":  # which the kernel merges itself
        return None
    given = [node.tensor(number) for number in range(len(node.inputs))]
    if len(runs) > limit:
        runs = [list(range(rank))]
        given = [graph.expand(v.broadcast_to(whole)) if v.rank else v for v in given]
    flat = []
    for value in given:
        dims = (1,) * (rank - value.rank) + value.shape
        flat.append(nodes.reshape(graph, value, _merged(dims, runs)) if value.rank else value)
    shape = _merged(whole, runs)
    made = graph.node(node.op_type, flat, shape=shape, dtype=node.dtype, **node.attributes)
    return nodes.reshape(graph, made, whole)


def _expand(node: _Node, limit: int) -> Value | None:
    """Broadcast along some dimensions first, and then along the others."""
    graph, whole, value = node.graph, node.whole, node.inputs[0]
    if len(whole) < len(node.shape):
        return None
    old = (1,) * (len(whole) - len(value.unbroadcast_shape)) + value.unbroadcast_shape
    repeated = [one == 1 and other != 1 for one, other in zip(old, whole, strict=True)]
    runs = _alike(repeated)
    if len(runs) <= limit:
        return None
    first = runs[limit - 2][-1] + 1
    middle = (*whole[:first], *old[first:])
    value = graph.node("Expand", [value, graph.vector(middle)], shape=middle)
    return graph.node("Expand", [value, graph.vector(whole)], shape=whole)


def _around(shape: Shape, axis: int) -> Shape:
    """Return an axis, and all before and behind it as one each."""
    return (product(shape[:axis]), shape[axis], product(shape[axis + 1 :]))


def _along_axis(node: _Node, limit: int) -> Value | None:
    """Compute along one dimension, of which what is before and behind is one."""
    if len(node.inputs[0].unbroadcast_shape) <= limit:
        return None
    tensor = node.tensor(0)
    before, size, behind = _around(tensor.shape, node.attributes["axis"] % tensor.rank)
    made = node.graph.node(
        node.op_type,
        [nodes.reshape(node.graph, tensor, (before, size, behind))],
        shape=(before, size, behind) if len(node.shape) == tensor.rank else (before, behind),
        dtype=node.dtype,
        **{**node.attributes, "axis": 1},
    )
    return nodes.reshape(node.graph, made, node.whole)


def _slice(node: _Node, limit: int) -> Value | None:
    """Slice along one dimension after another."""
    graph, (value, starts, ends, axes, *steps) = node.graph, node.inputs
    if len(value.unbroadcast_shape) <= limit:
        return None
    assert axes.array is not None, "the axes of a slice are constants"
    made = node.tensor(0)
    for number, axis in enumerate(axes.array.tolist()):
        parts = [_element(graph, vector, number) for vector in (starts, ends)]
        parts += [graph.vector([1]), *(_element(graph, vector, number) for vector in steps)]
        around = _around(made.shape, axis)
        flat = nodes.reshape(graph, made, around)
        cut = graph.node("Slice", [flat, *parts], shape=(around[0], node.shape[axis], around[2]))
        shape = (*made.shape[:axis], cut.shape[1], *made.shape[axis + 1 :])
        made = nodes.reshape(graph, cut, shape)
    return made


def _element(graph: TensorGraph, vector: Value, number: int) -> Value:
    """Return one element of a vector, as a vector."""
    if vector.array is not None:
        return graph.vector([int(vector.array[number])])
    return graph.node("Gather", [vector, graph.vector([number])], shape=(1,), axis=0)


def _gather_nd(node: _Node, limit: int) -> Value | None:
    """Look up by one number for all dimensions that are looked up in."""
    graph, value, indices = node.graph, node.tensor(0), node.tensor(1)
    depth = indices.shape[-1]
    if node.attributes.get("batch_dims") or not isinstance(depth, int) or depth <= limit:
        return None
    sizes, rest = value.shape[:depth], value.shape[depth:]
    strides = tuple(product(sizes[axis + 1 :]) for axis in range(depth))
    kind = np.dtype(np.int64)
    steps = nodes.elementwise(
        graph, "Mul", nodes.cast(graph, indices, kind), of_sizes(strides, kind, (depth,))
    )
    axes = graph.vector([indices.rank - 1])
    places = graph.node(
        "ReduceSum", [graph.expand(steps), axes], shape=indices.shape[:-1], keepdims=0
    )
    flat = nodes.reshape(graph, value, (product(sizes), *rest))
    return nodes.gather(graph, flat, places, 0)


_RULES: Mapping[str, Callable[[_Node, int], Value | None]] = {
    "ArgMax": _along_axis,
    "ArgMin": _along_axis,
    "Expand": _expand,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Softmax": _along_axis,
}
