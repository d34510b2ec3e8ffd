"""The loops that count, and what stays the same in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core_ops.slicing import Written
from bridge.core_ops.stablehlo_operation import Region
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, contents_of, of_size, of_sizes
from xla_call_module.size_polynomials import Dim, Iteration, maximum, of_atom
from xla_call_module.stablehlo.modules import read_counter, splat


def invariant_values(body: Region, inits: Sequence[Value]) -> dict[int, Value]:
    """Return the carried values that the body does not change, by number."""
    *_, last = body.block
    pairs = zip(body.block.arguments, last.operation.operands, strict=True)
    return {n: inits[n] for n, (before, after) in enumerate(pairs) if before == after}


@dataclass(frozen=True, slots=True)
class LoopCounter:
    """The counter of a loop.

    Attributes:
        number: the index of the counter among the carried values.
        first: the value before the first iteration.
        rounds: the number of iterations, if it is a number or a size.
        limit: the number of iterations as a scalar of int64.
    """

    number: int
    first: Dim
    step: int
    rounds: Dim | None
    limit: Value

    def at(self, number: Value, dtype: np.dtype[Any]) -> Value:
        """Return the counter in the iteration of a number, a scalar of int64 in the graph."""
        done = of_atom(Iteration(number.name, self.rounds)) * self.step
        return of_sizes((done + self.first,), dtype, ())

    def last(self, graph: TensorGraph, dtype: np.dtype[Any]) -> Value:
        """Return the counter behind the loop."""
        if self.rounds is None:
            return nodes.cast(graph, self.limit, dtype)
        return of_sizes((self.first + self.rounds * self.step,), dtype, ())


def counter_of(
    graph: TensorGraph,
    condition: Region,
    body: Region,
    inits: Sequence[Value],
    fixed: Mapping[int, Value],
) -> LoopCounter | None:
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
        return LoopCounter(number, first[0], step, rounds, of_size(rounds))
    if step != 1 or first[0] != 0:
        return None
    wide = nodes.elementwise(graph, "Max", nodes.cast(graph, limit, np.int64), 0)
    return LoopCounter(number, 0, 1, None, wide)


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


def row_written(
    graph: TensorGraph, counter: LoopCounter, number: Value, argument: Value, result: Value
) -> tuple[Value, bool] | None:
    """Return the row that an iteration writes, and whether the last row is the first one.

    None unless all iterations write all rows of an array, one each.
    """
    written = graph.recall(result.name) if result.name else None
    if not isinstance(written, Written) or written.array.name != argument.name:
        return None
    first, *others = written.starts
    rounds, shape = counter.rounds, argument.shape
    if rounds is None or shape[0] != rounds or written.part.shape != (1, *shape[1:]) or any(others):
        return None
    done = of_atom(Iteration(number.name, rounds))
    return (written.part, first != done) if first in (done, rounds - 1 - done) else None
