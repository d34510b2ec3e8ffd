"""Loops and branches, whose bodies are subgraphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bridge.blocks.block import Block, Operation, Value
from bridge.litert.emitting.block_emitter import BlockEmitter, Emit

_Write = Callable[[BlockEmitter], Sequence[int]]


def _inner(
    emitter: BlockEmitter, writers: Sequence[tuple[str, Sequence[Value], _Write]]
) -> tuple[list[BlockEmitter], list[Value]]:
    """Return subgraphs that take the same inputs: their own ones, and what any of them captures.

    Args:
        emitter: that of the graph around them.
        writers: the name, the inputs and the function that writes, of each.
    """
    made = []
    for name, inputs, write in writers:
        inner = emitter.inner(name)
        for number, value in enumerate(inputs):
            inner.input(value, f"x{number}")
        inner.graph.table.outputs = [*write(inner)]
        made.append((inner, len(inputs)))
    captured = [*dict.fromkeys(value for inner, _ in made for value in inner.captured)]
    for inner, count in made:
        own = inner.graph.table.inputs[:count]
        inner.graph.table.inputs = own + [inner.read(value) for value in captured]
        _separate(inner, own)
    return [inner for inner, _ in made], captured


def _separate(emitter: BlockEmitter, own: Sequence[int]) -> None:
    """Copy what would be in two places, since the runtime carries one tensor after another."""
    table, seen = emitter.graph.table, set()
    for number, tensor in enumerate(table.outputs):
        is_moved = tensor in table.inputs and (number >= len(own) or table.inputs[number] != tensor)
        if emitter.graph.is_constant(tensor) or is_moved or tensor in seen:
            table.outputs[number] = emitter.copy(tensor)
        seen.add(tensor)


def _while(emitter: BlockEmitter, op: Operation) -> list[int]:
    test, body = op.parameters["test"], op.parameters["body"]
    graphs, captured = _inner(
        emitter,
        [
            ("condition", test.inputs, lambda inner: inner.block(test)),
            ("body", body.inputs, lambda inner: inner.block(body)),
        ],
    )
    table, count = graphs[1].graph.table, len(op.results)
    table.outputs = table.outputs + table.inputs[count:]
    values = [*op.operands, *captured]
    like = [*op.results, *captured]
    made = emitter.make_several(
        "WHILE",
        [emitter.read(value) for value in values],
        like,
        condSubgraphIndex=graphs[0].graph.number,
        bodySubgraphIndex=graphs[1].graph.number,
    )
    return made[:count]


def _cond(emitter: BlockEmitter, op: Operation) -> list[int]:
    return _branches(emitter, op, op.parameters["branches"], 0)


def _branches(
    emitter: BlockEmitter, op: Operation, branches: Sequence[Block], number: int
) -> list[int]:
    """Return the results of the branch that the index chooses among those from a number on."""
    if len(branches) == 1:
        return emitter.block(branches[0])
    (index,) = op.operands
    given = [emitter.read(index), emitter.graph.constant(np.array(number, index.dtype))]
    test = emitter.make("EQUAL", given, Value((), np.dtype(bool)))
    graphs, captured = _inner(
        emitter,
        [
            ("branch", (), lambda inner: inner.block(branches[0])),
            ("branch", (), lambda inner: _branches(inner, op, branches[1:], number + 1)),
        ],
    )
    return emitter.make_several(
        "IF",
        [test, *(emitter.read(value) for value in captured)],
        op.results,
        thenSubgraphIndex=graphs[0].graph.number,
        elseSubgraphIndex=graphs[1].graph.number,
    )


EMITTERS: Mapping[str, Emit] = {"cond": _cond, "while": _while}
