"""Branches, and loops of which those that count have a known number of iterations.

What a counting loop writes row by row, as `jax.lax.scan` does, becomes a scan output of Loop, which
costs as much as the rows and not as the array for each of them. If it reads rows, too, it becomes a
Scan, which is handed one row of each array in each iteration, so that nothing has to be looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core_ops.loop_counters import LoopCounter, counter_of, invariant_values, row_written
from bridge.core_ops.slicing import Row
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import Node
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.loop_nodes import loop_body
from xla_call_module.size_polynomials import Dim, Iteration, Shape, lower_bound, of_atom


def _while(graph: Graph, op: Operation) -> Sequence[Value]:
    condition, body = op.regions
    inits = op.operands
    fixed = invariant_values(body, inits)
    counter = counter_of(graph, condition, body, inits, fixed)
    loop = _begin(graph, inits, fixed, counter)
    results = body.apply(loop.body, loop.arguments)
    if counter is not None:
        return _end(graph, loop, inits, results, loop.goes_on, nodes.constant(True, bool))
    (going_on,) = condition.apply(loop.body, results)
    (begins,) = condition.apply(graph, inits)
    if begins.scalar and going_on.scalar:
        op.refuse("its condition is always true, so it never ends", "let it end")
    return _end(graph, loop, inits, results, going_on, begins)


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop whose body is being built.

    Attributes:
        carried: the indices of the values that change from iteration to iteration.
        fixed: the values that the body does not change, by their index.
        counter: None where the loop does not count.
        goes_on: whether the loop goes on, as the body gets it.
    """

    body: Graph
    arguments: list[Value]
    carried: list[int]
    fixed: Mapping[int, Value]
    counter: LoopCounter | None
    goes_on: Value


def _begin(
    graph: Graph, inits: Sequence[Value], fixed: Mapping[int, Value], counter: LoopCounter | None
) -> _Loop:
    body, number, goes_on = loop_body(graph)
    arguments, carried = [], []
    for index, init in enumerate(inits):
        if index in fixed:
            arguments.append(init)
        elif counter is not None and index == counter.number:
            arguments.append(counter.at(number, init.dtype))
        else:
            carried.append(index)
            name = body.unique(f"carried_{index}")
            arguments.append(body.add_input(name, init.dtype, init.shape))
    return _Loop(body, arguments, carried, fixed, counter, goes_on)


def _end(
    graph: Graph, loop: _Loop, inits: Sequence[Value], results: Sequence[Value], going_on: Value,
    begins: Value,
) -> list[Value]:  # fmt: skip
    """Add the node of a loop whose body has been built, and return its results."""
    if not loop.carried:
        return [_last(graph, loop, number, {}) for number in range(len(inits))]
    rows = _rows(loop, results)
    kept = [number for number in loop.carried if number not in rows]
    unused = [loop.arguments[number].name for number in rows]
    loop.body.inputs[:] = [given for given in loop.body.inputs if given.name not in unused]
    values = [*(results[number] for number in kept), *(rows[n].row for n in rows)]
    whole = [graph.expand(inits[number]) for number in kept]
    kinds = [(value.shape, value.dtype) for value in whole]
    rounds = 0 if loop.counter is None or loop.counter.rounds is None else loop.counter.rounds
    kinds += [((rounds, *rows[n].row.shape), rows[n].row.dtype) for n in rows]
    scan = _Scan(graph, loop.body, rounds)
    if scan.pays(has_rows=bool(rows)):
        made = scan.finish(whole, values, kinds)
    else:
        for value in (going_on, *values):
            loop.body.add_result(value)
        limit = None if loop.counter is None else graph.expand(loop.counter.limit)
        made = graph.nodes_of("Loop", [limit, begins, *whole], kinds, body=loop.body)
    last = dict(zip((*kept, *rows), made, strict=True))
    for number, written in rows.items():
        rows_ = nodes.reverse(graph, last[number], [0]) if written.backwards else last[number]
        last[number] = nodes.reshape(graph, rows_, inits[number].shape)
    return [_last(graph, loop, number, last) for number in range(len(inits))]


def _last(graph: Graph, loop: _Loop, number: int, last: Mapping[int, Value]) -> Value:
    """Return a carried value after the last iteration."""
    counter = loop.counter
    if number in loop.fixed:
        return loop.fixed[number]
    if counter is None or number != counter.number:
        return last[number]
    dtype = loop.arguments[number].dtype
    return counter.last(graph, dtype)


@dataclass(frozen=True, slots=True)
class _Rows:
    """An array that each round writes one row of.

    Attributes:
        row: the row that is written, without the array's first dimension.
        backwards: whether the last row is the first that is written.
    """

    row: Value
    backwards: bool


def _rows(loop: _Loop, results: Sequence[Value]) -> dict[int, _Rows]:
    """Return the carried arrays that are written row by row and not read, by number."""
    written = {}
    for number in loop.carried:
        if (rows := _rows_of(loop, loop.arguments[number], results[number])) is not None:
            written[number] = rows
    while written:
        others = [results[n] for n in loop.carried if n not in written]
        kept = [value.name for value in (*others, *(rows.row for rows in written.values()))]
        used = _needed(loop.body, kept)
        read = [number for number in written if loop.arguments[number].name in used]
        if not read:
            break
        for number in read:
            del written[number]
    return written


def _rows_of(loop: _Loop, argument: Value, result: Value) -> _Rows | None:
    if loop.counter is None:
        return None
    number = Value(np.dtype(np.int64), (), (), loop.body.inputs[0].name)
    found = row_written(loop.body, loop.counter, number, argument, result)
    if found is None:
        return None
    # ONNX's reference evaluator does not put scalars together as the runtime does.
    row = argument.shape[1:] or (1,)
    return _Rows(nodes.reshape(loop.body, found[0], row), backwards=found[1])


@dataclass(frozen=True, slots=True)
class _Scan:
    """A loop that may become a Scan.

    Attributes:
        body: the body of the loop, whose first inputs are the iteration number and condition.
        rounds: the number of iterations; 0 where it is not known.
    """

    graph: Graph
    body: Graph
    rounds: Dim

    def pays(self, *, has_rows: bool) -> bool:
        """Return whether a Scan is possible and has rows that it reads or writes.

        ONNX's reference evaluator has none without a round.
        """
        return (lower_bound(self.rounds) or 0) > 0 and (has_rows or bool(self._read()))

    def finish(
        self,
        inits: Sequence[Value],
        results: Sequence[Value],
        kinds: Sequence[tuple[Shape, np.dtype[Any]]],
    ) -> list[Value]:
        """The results of the Scan."""
        body, read = self.body, self._read()
        for value in results:
            body.add_result(value)
        products = self._products(read)
        number = body.inputs[0]
        body.inputs[:] = body.inputs[2:]
        body.nodes[:] = [n for n in body.nodes if n.outputs[0] not in {*read, *products}]
        used = _needed(body, [result.reference for result in body.results])
        given = {name: self._in_order(row, number.name) for name, row in read.items()}
        arrays = [array for name, array in given.items() if name in used]
        names = [name for name in read if name in used]
        for name, (row, weight) in products.items():
            shape = (*given[row].shape[:-1], weight.shape[1])
            arrays.append(self.graph.node("MatMul", [given[row], weight], shape=shape))
            names.append(name)
        for name, array in zip(names, arrays, strict=True):
            body.add_input(name, array.dtype, array.shape[1:])
        if not arrays or number.name in used:
            arrays.append(nodes.count_up(self.graph, self.rounds))
            body.inputs.append(number)
        return self.graph.nodes_of(
            "Scan", [*inits, *arrays], kinds, body=body, num_scan_inputs=len(arrays)
        )

    def _in_order(self, row: Row, number: str) -> Value:
        """The array that a row is read of, from the one that is read first on."""
        is_forwards = row.index == self._done(number)
        return row.array if is_forwards else nodes.reverse(self.graph, row.array, [0])

    def _products(self, read: Mapping[str, Row]) -> dict[str, tuple[str, Value]]:
        """Return the products of rows with a matrix from outside, which are one MatMul."""
        inside = self._inside()
        products = {}
        for node in self.body.nodes:
            if node.op_type != "MatMul" or node.inputs[0] not in read or node.inputs[1] in inside:
                continue
            name, row = node.inputs[1], read[node.inputs[0]]
            array = self.body.initializers.get(name)
            shape = self.body.shape_of(name) if array is None else array.shape
            if shape is not None and len(shape) == 2 and row.array.rank > 1:
                weight = Value(row.array.dtype, shape, shape, name)
                products[node.outputs[0]] = (node.inputs[0], weight)
        return products

    def _inside(self) -> set[str]:
        """The names of what there is in the body only."""
        made = {name for node in self.body.nodes for name in node.outputs}
        return made | {given.name for given in self.body.inputs}

    def _read(self) -> dict[str, Row]:
        """Return the rows that are read of arrays outside of the loop, by the names of the rows."""
        body, inside = self.body, self._inside()
        done = self._done(body.inputs[0].name)
        return {
            node.outputs[0]: row
            for node in body.nodes
            if isinstance(row := body.recall(node.outputs[0]), Row)
            and node.inputs[0] not in inside
            and row.array.shape[0] == self.rounds
            and row.index in (done, self.rounds - 1 - done)
        }

    def _done(self, number: str) -> Dim:
        return of_atom(Iteration(number, self.rounds))


def _needed(body: Graph, references: Sequence[str]) -> set[str]:
    """The names of all values that some values are computed from."""
    names = set(references)
    for node in reversed(body.nodes):
        if not names.isdisjoint(node.outputs):
            names.update(_taken(node))
    return names


def _taken(node: Node) -> Iterator[str]:
    """The names of what a node takes, and what the graphs in it may take."""
    yield from node.inputs
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield from (result.reference for result in value.results)
            for inner in value.nodes:
                yield from _taken(inner)


RULES = {"stablehlo.while": Rule(_while)}
