"""Loops of ONNX: those that count have a known number of iterations.

What a counting loop writes row by row, as `jax.lax.scan` does, becomes a scan output of Loop, which
costs as much as the rows and not as the array for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core.size_polynomials import Dim, Iteration, maximum, of_atom
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import NarrowResults, Operation, Region, Rule
from bridge.onnx.graph.values import Value, contents_of, of_size, of_sizes
from bridge.onnx.loops.scans import Scan, needed
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.modules import splat

__all__ = ["RULES"]


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
    arguments = list(body.block.arguments)
    handed_on = _handed_on(body)
    return {n: init for n, init in enumerate(inits) if handed_on[n] == arguments[n]}


def _handed_on(region: Region) -> list[Any]:
    """Return the operands of the last operation of a region, as MLIR has them."""
    *_, last = region.block
    return list(last.operation.operands)


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
    (asked,) = _handed_on(condition)
    if _operation_of(condition, asked) != "stablehlo.compare":
        return None
    left, right = asked.owner.operands
    arguments = list(condition.block.arguments)
    if comparison_direction(asked.owner) != "LT" or left not in arguments:
        return None
    number = arguments.index(left)
    limit = _outer(condition, right, fixed)
    step = _step_of(body, number)
    first = contents_of(inits[number])
    if limit is None or step is None or first is None or inits[number].is_unsigned:
        return None
    known = contents_of(limit)
    if known is not None and (step == 1 or isinstance(known[0], int)):
        rounds = maximum(_ceil(known[0] - first[0], step), 0)
        return _Counter(number, first[0], step, rounds, of_size(rounds))
    if step != 1 or first[0] != 0:
        return None
    wide = nodes.elementwise(graph, "Max", nodes.cast(graph, limit, np.int64), 0)
    return _Counter(number, 0, 1, None, wide)


def _operation_of(region: Region, value: Any) -> str:
    """The name of the operation in a region that makes a value; empty if it comes from outside."""
    if value in region.outside or value in list(region.block.arguments):
        return ""
    return str(value.owner.name)


def _ceil(distance: Dim, step: int) -> Dim:
    return -(-distance // step) if isinstance(distance, int) else distance


def _step_of(body: Region, number: int) -> int | None:
    """Return the number that the body adds to an argument; None if it does anything else."""
    result, argument = _handed_on(body)[number], body.block.arguments[number]
    if _operation_of(body, result) != "stablehlo.add":
        return None
    operands = list(result.owner.operands)
    if argument not in operands:
        return None
    other = operands[1 - operands.index(argument)]
    step = _outer(body, other, {})
    if step is None or step.scalar is None or int(step.scalar) < 1:
        return None
    return int(step.scalar)


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
    body, number, goes_on = nodes.loop_body(graph)
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
    scan = Scan(graph, loop.body, rounds)
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
        used = needed(loop.body, kept)
        read = [number for number in written if loop.arguments[number].name in used]
        if not read:
            break
        for number in read:
            del written[number]
    return written


def _rows_of(loop: _Loop, argument: Value, result: Value) -> _Rows | None:
    written = loop.body.written.get(result.name)
    if loop.counter is None or written is None or written.array.name != argument.name:
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


RULES = {"stablehlo.while": Rule(_while, narrow=NarrowResults.KEPT)}
