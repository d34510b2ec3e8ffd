"""What sorts and searches of the greatest elements say, and sorts by any comparator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.attributes import comparison_direction

__all__ = ["comparison_of", "pairwise_places", "reduction_setting", "top_k_options"]


def top_k_options(op: Operation) -> tuple[int, bool] | None:
    """Return how many elements a `top_k` has, and whether they are the greatest ones.

    None where it has options that are none of its own.
    """
    settings = op.text("composite_attributes") or op.text("mhlo.attributes")
    options = dict(part.strip("{} ").split(" = ") for part in settings.split(","))
    if (
        options.keys() - {"is_stable", "k", "largest"}
        or len(op.operands) != 1
        or "k" not in options
    ):
        return None
    return int(options["k"].split(":")[0]), options.get("largest", "true").startswith("true")


def reduction_setting(op: Operation, name: str) -> int:
    """Return a number in the configuration of `ApproxTopK`."""
    config = op.text("mhlo.backend_config") or op.text("backend_config")
    return int(config.partition(f"{name} = ")[2].split(" ")[0])


def comparison_of(op: Operation) -> str:
    """The direction of the only comparison in the function that a custom call names."""
    body = op.regions[0].block
    comparisons = [v.operation for v in body if v.operation.name == "stablehlo.compare"]
    arguments = list(body.arguments)[:2]
    if len(comparisons) != 1 or list(comparisons[0].operands) != arguments:
        return ""
    return comparison_direction(comparisons[0])


# All elements are compared with all others, so that many are a hundred million comparisons.
_MAX_ELEMENTS = 10_000


def pairwise_places(graph: TensorGraph, op: Operation, axis: int) -> Value:
    """Return for each element how many come before it in a stable sort along a dimension.

    Raises:
        UnsupportedError: there are too many elements to compare all of them.
    """
    values = [graph.expand(value) for value in op.operands]
    shape, rank = values[0].shape, values[0].rank
    size = shape[axis]
    if isinstance(size, int) and size > _MAX_ELEMENTS:
        op.refuse(
            f"its comparator is not the order of one operand after another, and {size} elements "
            "are too many to compare each with each",
            "sort by keys, as jax.lax.sort does",
        )
    square = (*shape[:axis], size, size, *shape[axis + 1 :])
    after = [number for number in range(rank + 1) if number != axis]  # the other one comes first
    before = [number for number in range(rank + 1) if number != axis + 1]
    own = [graph.expand(nodes.broadcast_in_dim(graph, value, after, square)) for value in values]
    other = [graph.expand(nodes.broadcast_in_dim(graph, value, before, square)) for value in values]
    first = _compare_pairs(graph, op, other, own)
    tie = nodes.elementwise(graph, "Equal", first, _compare_pairs(graph, op, own, other))
    line = nodes.count_up(graph, size)
    indices = [nodes.broadcast_in_dim(graph, line, [n], square) for n in (axis, axis + 1)]
    earlier, later = (nodes.elementwise(graph, name, *indices) for name in ("Less", "Greater"))
    # XLA, and StableHLO's interpreter, turn around what a comparator says to be before each other.
    precedes = nodes.where(graph, tie, nodes.where(graph, first, later, earlier), first)
    return _count_before(graph, precedes, axis, shape)


def _compare_pairs(
    graph: TensorGraph, op: Operation, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    pairs = [value for pair in zip(left, right, strict=True) for value in pair]
    (before,) = op.regions[0].apply(graph, pairs)
    return before.broadcast_to(left[0].shape)


def _count_before(graph: TensorGraph, flags: Value, axis: int, shape: tuple[Dim, ...]) -> Value:
    """Return the number of elements that come before each element."""
    numbers = graph.expand(nodes.cast(graph, flags, np.float32))  # exact, up to 2**24 of them
    total = graph.node("ReduceSum", [numbers, graph.vector([axis])], shape=shape, keepdims=0)
    return nodes.cast(graph, total, np.int64)
