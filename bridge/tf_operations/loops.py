"""Loops: While, of which those that count have a counter of int64."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core_ops.loop_counters import LoopCounter, counter_of, invariant_values
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph

__all__ = ["RULES"]


def _while(graph: Graph, op: Operation) -> Sequence[Value]:
    condition, body = op.regions
    inits = op.operands
    fixed = invariant_values(body, inits)
    counter = counter_of(graph, condition, body, inits, fixed)
    others = [n for n in range(len(inits)) if n not in fixed]
    if counter is not None:
        return _count(graph, op, counter, [n for n in others if n != counter.number])

    def arguments(values: Sequence[Value]) -> list[Value]:
        carried = dict(zip(others, values, strict=True))
        return [carried.get(n, init) for n, init in enumerate(inits)]

    def goes_on(graph: Graph, values: list[Value]) -> Value:
        (flag,) = condition.apply(graph, arguments(values))
        return flag

    def step(graph: Graph, values: list[Value]) -> list[Value]:
        results = body.apply(graph, arguments(values))
        return [results[n] for n in others]

    made = graph.while_loop([inits[n] for n in others], goes_on, step)
    return arguments(made)


def _count(
    graph: Graph, op: Operation, counter: LoopCounter, others: Sequence[int]
) -> Sequence[Value]:
    """Return what a loop leaves whose number of iterations is known when it begins."""
    (_, body), inits = op.regions, op.operands

    def step(graph: Graph, number: Value, values: list[Value]) -> list[Value]:
        carried = dict(zip(others, values, strict=True))
        carried[counter.number] = counter.at(number, inits[counter.number].dtype)
        results = body.apply(graph, [carried.get(n, init) for n, init in enumerate(inits)])
        return [results[n] for n in others]

    made = graph.counted(counter.limit, [inits[n] for n in others], step)
    last = dict(zip(others, made, strict=True))
    last[counter.number] = counter.last(graph, inits[counter.number].dtype)
    return [last.get(n, init) for n, init in enumerate(inits)]


RULES = {"stablehlo.while": Rule(_while)}
