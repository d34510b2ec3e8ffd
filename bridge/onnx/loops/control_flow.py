"""Branches, and loops of which those that count have a known number of iterations.

What a counting loop writes row by row, as `jax.lax.scan` does, becomes a scan output of Loop, which
costs as much as the rows and not as the array for each of them. If it reads rows, too, it becomes a
Scan, which is handed one row of each array in each iteration, so that nothing has to be looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import NarrowResults, Operation, Region, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import Node
from bridge.graphs.values import Value, contents_of, of_size, of_sizes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.loop_nodes import loop_body
from xla_call_module.size_polynomials import Dim, Iteration, Shape, lower_bound, maximum, of_atom
from xla_call_module.stablehlo.modules import read_counter, splat

__all__ = ["RULES", "Row", "Written"]

_Branch = Callable[[Graph], Sequence[Value]]


def _case(graph: Graph, op: Operation) -> Sequence[Value]:
    """The branch that an index says: the last one for an index that is out of bounds."""
    (index,), branches = op.operands, op.regions
    if index.scalar is not None:
        number = int(index.scalar)
        return branches[number if 0 <= number < len(branches) else -1].apply(graph, [])
    return _choose(graph, op, index, 0)


def _choose(graph: Graph, op: Operation, index: Value, number: int) -> Sequence[Value]:
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


def _if(graph: Graph, op: Operation) -> Sequence[Value]:
    (condition,), (true, false) = op.operands, op.regions
    if condition.scalar is not None:
        return (true if condition.scalar else false).apply(graph, [])
    return _branch(
        graph, op, condition, lambda body: true.apply(body, []), lambda body: false.apply(body, [])
    )


def _branch(graph: Graph, op: Operation, condition: Value, *branches: _Branch) -> list[Value]:
    """Return the results of the first branch where a condition holds, of the second elsewhere."""
    bodies = [graph.body() for _ in branches]
    for body, branch in zip(bodies, branches, strict=True):
        for value in branch(body):
            body.add_result(value)
    kinds = [(kind.shape, kind.dtype) for kind in op.results]
    return graph.nodes_of("If", [condition], kinds, then_branch=bodies[0], else_branch=bodies[1])


def _optimization_barrier(graph: Graph, op: Operation) -> Sequence[Value]:
    del graph
    return op.operands


def _map(graph: Graph, op: Operation) -> Value:
    """A region of scalars, applied to whole tensors."""
    (mapped,) = op.regions[0].apply(graph, op.operands)
    return mapped.broadcast_to(op.operands[0].shape)


def _token(graph: Graph, op: Operation) -> Value:
    """Return a constant for a token, which orders effects that an ONNX model does not have."""
    del graph, op
    return nodes.constant(True, bool)


@dataclass(frozen=True, slots=True)
class Written:
    """The fact that a value is an array of which a part has been written.

    Attributes:
        array: the array before.
        part: the values that were written.
        starts: the start of the part along each dimension; None where it is computed.
    """

    array: Value
    part: Value
    starts: tuple[Dim | None, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The fact that a value is one row of an array.

    Attributes:
        array: the array that was read.
        index: the index along the first dimension.
    """

    array: Value
    index: Dim


def _while(graph: Graph, op: Operation) -> Sequence[Value]:
    condition, body = op.regions
    inits = op.operands
    fixed = _fixed(body, inits)
    counter = _counter_of(graph, condition, body, inits, fixed)
    loop = _begin(graph, inits, fixed, counter)
    results = body.apply(loop.body, loop.arguments)
    if counter is not None:
        return _end(graph, loop, inits, results, loop.goes_on, nodes.constant(True, bool))
    (going_on,) = condition.apply(loop.body, results)
    (begins,) = condition.apply(graph, inits)
    if begins.scalar and going_on.scalar:
        op.refuse("its condition is always true, so it never ends", "let it end")
    return _end(graph, loop, inits, results, going_on, begins)


def _fixed(body: Region, inits: Sequence[Value]) -> dict[int, Value]:
    """Return the carried values that the body does not change, by number."""
    *_, last = body.block
    pairs = zip(body.block.arguments, last.operation.operands, strict=True)
    return {n: inits[n] for n, (before, after) in enumerate(pairs) if before == after}


@dataclass(frozen=True, slots=True)
class _Counter:
    """The counter of a loop.

    Attributes:
        number: the index of the counter among the carried values.
        first: the value before the first iteration.
        step: the number that is added in each iteration.
        rounds: the number of iterations, if it is a number or a size.
        limit: the number of iterations as a scalar of int64.
    """

    number: int
    first: Dim
    step: int
    rounds: Dim | None
    limit: Value


def _counter_of(
    graph: Graph,
    condition: Region,
    body: Region,
    inits: Sequence[Value],
    fixed: Mapping[int, Value],
) -> _Counter | None:
    """The counter of a loop that goes on while one is less than a limit; None for other loops."""
    counter = read_counter(condition.block, body.block)
    if counter is None:
        return None
    number, limit_, step_ = counter
    limit, added = _outer(condition, limit_, fixed), _outer(body, step_, {})
    step = 0 if added is None or added.scalar is None else int(added.scalar)
    first = contents_of(inits[number])
    if limit is None or step < 1 or first is None or inits[number].is_unsigned:
        return None
    known = contents_of(limit)
    if known is not None and (step == 1 or isinstance(known[0], int)):
        rounds = maximum(_ceil(known[0] - first[0], step), 0)
        return _Counter(number, first[0], step, rounds, of_size(rounds))
    if step != 1 or first[0] != 0:
        return None
    wide = nodes.elementwise(graph, "Max", nodes.cast(graph, limit, np.int64), 0)
    return _Counter(number, 0, 1, None, wide)


def _ceil(distance: Dim, step: int) -> Dim:
    return -(-distance // step) if isinstance(distance, int) else distance


def _outer(region: Region, value: Any, fixed: Mapping[int, Value]) -> Value | None:
    """Return a value that a region takes from outside, or has as a constant; None for others."""
    if value in region.outside:
        return region.outside[value]
    arguments = list(region.block.arguments)
    if value in arguments:
        return fixed.get(arguments.index(value))
    text = splat(value.owner) if value.owner.name == "stablehlo.constant" else None
    return nodes.constant(int(text), np.int64) if text and text.lstrip("-").isdigit() else None


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop whose body is being built.

    Attributes:
        body: the graph of the body.
        arguments: the arguments of the body.
        carried: the indices of the values that change from iteration to iteration.
        fixed: the values that the body does not change, by their index.
        counter: None where the loop does not count.
        goes_on: whether the loop goes on, as the body gets it.
    """

    body: Graph
    arguments: list[Value]
    carried: list[int]
    fixed: Mapping[int, Value]
    counter: _Counter | None
    goes_on: Value


def _begin(
    graph: Graph, inits: Sequence[Value], fixed: Mapping[int, Value], counter: _Counter | None
) -> _Loop:
    body, number, goes_on = loop_body(graph)
    arguments, carried = [], []
    for index, init in enumerate(inits):
        if index in fixed:
            arguments.append(init)
        elif counter is not None and index == counter.number:
            done = of_atom(Iteration(number.name, counter.rounds)) * counter.step
            arguments.append(of_sizes((done + counter.first,), init.dtype, ()))
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
    if counter.rounds is None:
        return nodes.cast(graph, counter.limit, dtype)
    return of_sizes((counter.first + counter.rounds * counter.step,), dtype, ())


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
    written = loop.body.recall(result.name)
    if loop.counter is None or not isinstance(written, Written):
        return None
    if written.array.name != argument.name:
        return None
    rounds = loop.counter.rounds
    first, *others = written.starts
    part, shape = written.part, argument.shape
    if rounds is None or shape[0] != rounds or part.shape != (1, *shape[1:]) or any(others):
        return None
    done = of_atom(Iteration(loop.body.inputs[0].name, rounds))
    if first not in (done, rounds - 1 - done):
        return None
    # ONNX's reference evaluator does not put scalars together as the runtime does.
    row = shape[1:] or (1,)
    return _Rows(nodes.reshape(loop.body, part, row), backwards=first != done)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A loop that may become a Scan.

    Attributes:
        graph: the graph that the operations are added to.
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
        """The results of the Scan.

        Args:
            inits: the carried values before the first iteration.
            results: the results of the body: the carried values, and then rows.
            kinds: the shapes and dtypes of the results.
        """
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


_choosing = partial(Rule, narrow=NarrowResults.KEPT)
RULES = {
    "stablehlo.after_all": Rule(_token),
    "stablehlo.case": _choosing(_case),
    "stablehlo.create_token": Rule(_token),
    "stablehlo.if": _choosing(_if),
    "stablehlo.map": _choosing(_map, ("dimensions",)),
    "stablehlo.optimization_barrier": _choosing(_optimization_barrier, expand=False),
    "stablehlo.while": _choosing(_while),
}
