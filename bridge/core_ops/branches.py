"""Branches: If, of which each branch is a graph in the graph; and what only orders or maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value

_Branch = Callable[[TensorGraph], Sequence[Value]]


def _case(graph: TensorGraph, op: Operation) -> Sequence[Value]:
    """The branch that an index says: the last one for an index that is out of bounds."""
    (index,), branches = op.operands, op.regions
    if index.scalar is not None:
        number = int(index.scalar)
        return branches[number if 0 <= number < len(branches) else -1].apply(graph, [])
    return _choose(graph, op, index, 0)


def _choose(graph: TensorGraph, op: Operation, index: Value, number: int) -> Sequence[Value]:
    """The results of the branches from some number on."""
    branch = op.regions[number]
    if number == len(op.regions) - 1:
        return branch.apply(graph, [])
    is_this = nodes.elementwise(graph, "Equal", index, number)
    return _branch(
        graph,
        op,
        is_this,
        lambda body: branch.apply(body, []),
        lambda body: _choose(body, op, index, number + 1),
    )


def _if(graph: TensorGraph, op: Operation) -> Sequence[Value]:
    (condition,), (true, false) = op.operands, op.regions
    if condition.scalar is not None:
        return (true if condition.scalar else false).apply(graph, [])
    return _branch(
        graph, op, condition, lambda body: true.apply(body, []), lambda body: false.apply(body, [])
    )


def _branch(graph: TensorGraph, op: Operation, condition: Value, *branches: _Branch) -> list[Value]:
    """Return the results of the first branch where a condition holds, of the second elsewhere."""
    bodies = [graph.body() for _ in branches]
    for body, branch in zip(bodies, branches, strict=True):
        for value in branch(body):
            body.add_result(value)
    kinds = [(kind.shape, kind.dtype) for kind in op.results]
    return graph.nodes_of("If", [condition], kinds, then_branch=bodies[0], else_branch=bodies[1])


def _map(graph: TensorGraph, op: Operation) -> Value:
    """A region of scalars, applied to whole tensors."""
    (mapped,) = op.regions[0].apply(graph, op.operands)
    return mapped.broadcast_to(op.operands[0].shape)


# A token orders effects, which a graph does not have.
_TOKEN = Rule(lambda *_: nodes.constant(True, bool))
RULES = {
    "stablehlo.after_all": _TOKEN,
    "stablehlo.case": Rule(_case),
    "stablehlo.create_token": _TOKEN,
    "stablehlo.if": Rule(_if),
    "stablehlo.map": Rule(_map, ("dimensions",)),
    "stablehlo.optimization_barrier": Rule(lambda _, op: op.operands, expand=False),
}
