"""Loops: While, of which those that count have a counter of int64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridge.core_ops.loop_counters import LoopCounter, counter_of, invariant_values, row_written
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value, of_size
from bridge.tf_operations.liveness import live_nodes, names_used
from bridge.tf_operations.operation_graph import Graph, ListedRow
from xla_call_module.size_polynomials import Iteration, of_atom


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

    def rows(
        body: Graph, carried: Sequence[Value], results: Sequence[Value]
    ) -> dict[int, ListedRow]:
        return _rows(body, counter, carried, results)

    made = graph.counted(counter.limit, [inits[n] for n in others], step, rows)
    last = dict(zip(others, made, strict=True))
    last[counter.number] = counter.last(graph, inits[counter.number].dtype)
    return [last.get(n, init) for n, init in enumerate(inits)]


def _rows(
    body: Graph, counter: LoopCounter, carried: Sequence[Value], results: Sequence[Value]
) -> dict[int, ListedRow]:
    """Return what each iteration writes into arrays that are written row by row and not read."""
    number = carried[0]
    written = {}
    for index, (value, result) in enumerate(zip(carried, results, strict=True)):
        if (row := _row_of(body, counter, number, value, result)) is not None:
            written[index] = row
    while written:
        others = [result for index, result in enumerate(results) if index not in written]
        ends = [*others, *(row.row for row in written.values())]
        live = live_nodes(body.nodes, [body.reference(body.expand(value)) for value in ends])
        used = {name for node in live for name in names_used(node)}
        used.update(value.name for value in ends)
        read = [index for index in written if carried[index].name in used]
        if not read:
            break
        for index in read:
            del written[index]
    return written


def _row_of(
    body: Graph, counter: LoopCounter, number: Value, value: Value, result: Value
) -> ListedRow | None:
    """Return what an iteration writes, if all iterations write all rows of an array."""
    found = row_written(body, counter, number, value, result)
    if found is None:
        return None
    row = body.expand(nodes.reshape(body, found[0], value.shape[1:]))
    done = of_atom(Iteration(number.name, counter.rounds))
    index = of_size(value.shape[0] - 1 - done if found[1] else done)
    return ListedRow(row, nodes.cast(body, body.expand(index), np.int32))


RULES = {"stablehlo.while": Rule(_while)}
