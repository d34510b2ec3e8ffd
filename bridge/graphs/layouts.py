"""The layout of images: JAX has the features last as a rule, many formats behind the batch.

What a convolution puts out is turned back into the order of the program, and what follows is
computed before that: so between two convolutions nothing is turned at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Shape


@dataclass(frozen=True, slots=True)
class Transposed:
    """The fact that a value is another one with its dimensions in another order.

    Attributes:
        value: the other one.
        order: for each dimension, which one of the other value it is.
    """

    value: Value
    order: tuple[int, ...]


def transpose(graph: TensorGraph, value: Value, order: Sequence[int]) -> Value:
    """The value with its dimensions in another order, which is done as late as possible."""
    inner, steps = value, tuple(order)
    if (fact := transposition_of(graph, value)) is not None:
        inner, steps = fact.value, tuple(fact.order[axis] for axis in order)
    if steps == tuple(range(len(steps))):
        return inner
    shape = [inner.shape[axis] for axis in steps]
    made = graph.node("Transpose", [inner], shape=shape, perm=list(steps))
    graph.remember(made, Transposed(inner, steps))
    return made


def transposition_of(graph: TensorGraph, value: Value) -> Transposed | None:
    """Return the fact of a value that `transpose` made; None for any other."""
    fact = graph.recall(value.name) if value.name and value.is_expanded else None
    return fact if isinstance(fact, Transposed) else None


def untransposed_operands(
    graph: TensorGraph, values: Sequence[Value]
) -> tuple[list[Value], tuple[int, ...]] | None:
    """The operands of an elementwise operation before they were turned, and how they were.

    None where they were not all turned in one way; numbers, and one for each of the features in the
    last dimension, go with any.
    """
    facts = [transposition_of(graph, value) for value in values]
    orders = {fact.order for fact in facts if fact is not None}
    if len(orders) != 1:
        return None
    (order,) = orders
    pairs = list(zip(values, facts, strict=True))
    if any(fact is None and len(value.unbroadcast_shape) > 1 for value, fact in pairs):
        return None
    return [_before(graph, value, fact, order) for value, fact in pairs], order


def _before(
    graph: TensorGraph, value: Value, fact: Transposed | None, order: Sequence[int]
) -> Value:
    if fact is not None:
        return fact.value
    behind = len(order) - 1 - order[-1]
    if not value.unbroadcast_shape or not behind:
        return value.broadcast_to(value.unbroadcast_shape)
    unbroadcast: Shape = (*value.unbroadcast_shape, *(1,) * behind)
    return graph.node("Unsqueeze", [value, graph.vector(range(1, 1 + behind))], shape=unbroadcast)


def untransposed_axes(
    graph: TensorGraph, value: Value, axes: Sequence[int]
) -> tuple[Value, list[int]]:
    """Return the value before its transposition, and the axes, where the others stay in order."""
    fact = transposition_of(graph, value)
    if fact is None:
        return value, list(axes)
    kept = [axis for number, axis in enumerate(fact.order) if number not in axes]
    if kept != sorted(kept):
        return value, list(axes)
    return fact.value, sorted(fact.order[axis] for axis in axes)
